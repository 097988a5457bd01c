"""Benchmarks: load a running server's `tensorrt_llm` model and measure what comes back.

Takes an address and settings, gives a `BenchmarkResult`: every request's record and the figures
made of them. It guarantees that the same seed sends the same requests at the same due times, that
latencies count from when a request was due, that responses are stamped before they are decoded, and
that the figures are those of docs/metrics.md.

    workload, arrivals   what to send and when (pure)
    wire                 requests and responses as bytes (pure)
    core_model, load     the server's model, and the load generator
    records, statistics  what was seen, and every formula (pure)
    benchmark, report    one run from settings to result; tables, JSON, files
"""

from trtllm_serve_cli.bench.arrivals import (
    AllAtOnce,
    ArrivalProcess,
    AtConcurrency,
    AtRate,
    Load,
)
from trtllm_serve_cli.bench.benchmark import (
    BenchmarkResult,
    BenchmarkSettings,
    Progress,
    run_benchmark,
)
from trtllm_serve_cli.bench.workload import TokenNormDist

__all__ = [
    "AllAtOnce",
    "ArrivalProcess",
    "AtConcurrency",
    "AtRate",
    "BenchmarkResult",
    "BenchmarkSettings",
    "Load",
    "Progress",
    "TokenNormDist",
    "run_benchmark",
]
