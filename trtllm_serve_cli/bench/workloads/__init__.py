"""What is sent: each source of requests in a file of its own.

A workload draws `RequestSpec`s: the same generator state, the same requests. Files and data sets
are read before; what cannot be used in one is a `BadInput` that names the file and the line.
"""

from trtllm_serve_cli.bench.workloads.dataset import (
    Dataset,
    Lengths,
    Tokenizer,
    as_text,
    read_entries,
    tokenize,
)
from trtllm_serve_cli.bench.workloads.histogram import TokenHistogram, find_histogram
from trtllm_serve_cli.bench.workloads.identity import Identity
from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist
from trtllm_serve_cli.bench.workloads.prefixes import MultiTurn, SharedPrefix
from trtllm_serve_cli.bench.workloads.spec import RequestSpec, Turn, Workload
from trtllm_serve_cli.bench.workloads.trace import Trace, read_trace
from trtllm_serve_cli.bench.workloads.words import RandomWords

__all__ = [
    "Dataset",
    "Identity",
    "Lengths",
    "MultiTurn",
    "RandomWords",
    "RequestSpec",
    "SharedPrefix",
    "TokenHistogram",
    "TokenNormDist",
    "Tokenizer",
    "Trace",
    "Turn",
    "Workload",
    "as_text",
    "find_histogram",
    "read_entries",
    "read_trace",
    "tokenize",
]
