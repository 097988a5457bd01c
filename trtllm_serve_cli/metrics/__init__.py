"""Scrape, parse and summarize the metrics of a running server.

Input: the address of a server's metrics service. Output: its page, a `Snapshot` of the samples, and
a `Summary` in readable units; also the files with which Prometheus and Grafana monitor the server.
Guarantees: a truncated page, or a page in another format, raises a `TllmError`; a value that the
page lacks is `None`; a counter that restarted does not give a negative rate.
"""
