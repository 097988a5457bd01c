"""The event loop of a worker."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Opens more sockets than the soft limit allows when the worker starts.
OPEN_MANY = """
import resource, socket, sys
from trtllm_serve_cli.bench.generator.bench_worker import make_loop
from trtllm_serve_cli.bench.generator.worker_plan import Share
from trtllm_serve_cli.bench.model.served_model import ServedModel
from trtllm_serve_cli.bench.transport.codec import RequestOptions
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 1000))
model = ServedModel("here", "tensorrt_llm", "1", "2.51.0", True, 8, 500, interface="http")
models = (model,) * int(sys.argv[2])
share = Share(models, RequestOptions(), 0, 1, (), None, int(sys.argv[1]), 0.0, None)
loop = make_loop(share)
sockets = [socket.socket() for _ in range(500)]
loop.close()
"""


@pytest.mark.parametrize(
    ("concurrency", "num_targets", "code"), [(1000, 1, 0), (500, 2, 0), (10, 1, 1)]
)
def test_soft_limit_of_open_files_does_not_limit_the_concurrency(
    concurrency: int, num_targets: int, code: int
) -> None:
    command = (sys.executable, "-c", OPEN_MANY, str(concurrency), str(num_targets))
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == code, result.stderr
    assert code == 0 or "Too many open files" in result.stderr
