"""Scrape, parse and summarize the metrics of a running server.

This package fetches a server's metrics page, parses the page into a `Snapshot` of samples, and
computes a `Summary` in human-readable units. `exporters` generates configuration files for
Prometheus and Grafana.

Functions that parse a page raise a `TllmError` if the page is truncated or is not in Prometheus'
text format. Values that are missing from the page are `None` in the summary. Rates are never
negative, even if a counter is reset.
"""
