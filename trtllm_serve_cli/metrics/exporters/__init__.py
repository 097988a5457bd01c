"""Generate configuration files for Prometheus and Grafana, which monitor a server."""
