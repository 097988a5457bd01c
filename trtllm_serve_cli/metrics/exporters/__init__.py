"""Configuration files for the programs that monitor a server: Prometheus and Grafana."""
