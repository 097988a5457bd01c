"""Scrape, parse and summarize the metrics of a running server.

The modules fetch a server's metrics page, parse the page into a `Snapshot` of samples, and compute
a `Summary` in readable units. They also generate configuration files for Prometheus and Grafana.

The modules raise a `TllmError` if a page is truncated or is not in Prometheus' format. If a page
does not contain a value, the summary contains `None`. Rates are never negative, even if a counter
restarts.
"""
