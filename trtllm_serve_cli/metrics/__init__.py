"""What a running server says about itself: scrape, parse, summarize.

Takes the address of a server's metrics service; gives its page, a `Snapshot` of the samples, and a
`Summary` in the units people read; also the files by which Prometheus and Grafana watch it.
Guarantees: a page that is cut, or that is no metrics page, is a
`TllmError`; a value that the page lacks is `None`; a counter that began again gives no negative
rate.
"""
