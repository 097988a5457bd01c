"""What a running server says about itself: scrape, parse, summarize.

Takes the address of a server's metrics service; gives its page, a `Snapshot` of the samples, and a
`Summary` in the units people read. Guarantees: a page that is cut, or that is no metrics page, is a
`TllmError`; a value that the page lacks is `None`; a counter that began again gives no negative
rate.
"""

from trtllm_serve_cli.metrics.fetch import fetch_metrics
from trtllm_serve_cli.metrics.parse import Sample, Snapshot, parse_metrics
from trtllm_serve_cli.metrics.summary import (
    EngineRow,
    GpuRow,
    HostRow,
    ModelRow,
    Summary,
    rate_per_s,
    summarize,
)
from trtllm_serve_cli.metrics.watch import watch_metrics

__all__ = [
    "EngineRow",
    "GpuRow",
    "HostRow",
    "ModelRow",
    "Sample",
    "Snapshot",
    "Summary",
    "fetch_metrics",
    "parse_metrics",
    "rate_per_s",
    "summarize",
    "watch_metrics",
]
