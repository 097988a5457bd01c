"""What a running server says about itself: scrape, parse, summarize.

Takes the address of a server's metrics service; gives its page, a `Snapshot` of the samples, and a
`Summary` in the units people read; also the files by which Prometheus and Grafana watch it.
Guarantees: a page that is cut, or that is no metrics page, is a
`TllmError`; a value that the page lacks is `None`; a counter that began again gives no negative
rate.
"""

from trtllm_serve_cli.metrics.export import plan_export, write_export
from trtllm_serve_cli.metrics.fetch import fetch_metrics, read_saved_metrics
from trtllm_serve_cli.metrics.histogram import Latency
from trtllm_serve_cli.metrics.parse import Sample, Snapshot, parse_metrics
from trtllm_serve_cli.metrics.summary import (
    EngineRow,
    GpuRow,
    HostRow,
    ModelRow,
    Summary,
    rate_per_s,
    sum_known,
    summarize,
)
from trtllm_serve_cli.metrics.watch import start_watches, watch_metrics

__all__ = [
    "EngineRow",
    "GpuRow",
    "HostRow",
    "Latency",
    "ModelRow",
    "Sample",
    "Snapshot",
    "Summary",
    "fetch_metrics",
    "parse_metrics",
    "plan_export",
    "rate_per_s",
    "read_saved_metrics",
    "start_watches",
    "sum_known",
    "summarize",
    "watch_metrics",
    "write_export",
]
