"""Scrape, parse and summarize the metrics of a running server.

Input: the address of a server's metrics service. Output: the metrics page, a `Snapshot` of its
samples, a `Summary` in readable units, and configuration files for Prometheus and Grafana.

A page that is truncated or has another format raises a `TllmError`. A value that the page lacks is
`None`. If a counter restarts, its rate is not negative.
"""
