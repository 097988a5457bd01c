"""Scrape, parse and summarize the metrics of a running server.

The modules fetch the page of a server's metrics service, parse the page into a `Snapshot` of
samples, and compute a `Summary` in readable units. They also generate configuration files for
Prometheus and Grafana.

A page that is truncated or has another format raises a `TllmError`. A value is `None` if the page
does not contain it. A rate is never negative, even if its counter restarts.
"""
