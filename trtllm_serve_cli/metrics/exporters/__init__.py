"""Generate configuration files for monitoring a server with Prometheus and Grafana."""
