"""Scrape, parse and summarize the metrics of a running server.

The modules fetch a server's metrics page, parse it into a `Snapshot` of samples, and compute a
`Summary` in human-readable units. They also generate configuration files for Prometheus and
Grafana.

The modules raise a `TllmError` if a page is truncated or is not in Prometheus' text format. Values
that are missing from the page are `None` in the summary. Rates are never negative, even if a
counter is reset.
"""
