"""Measure the load generator's limits, with a model that responds immediately.

    python benchmarks/load.py [--rounds 3] [--requests 6000] [--json]
                              [--upstream SCRIPT] [--upstream-python PYTHON] [--aiperf PROGRAM]

A Python model in the embedded Triton sends one response to every request immediately. It is
decoupled in one server, and not in another. Printed for each:

- the highest request rate of an open loop that `tllm bench` sustains with a p99 schedule lag under
  1 ms and more than 98 % of the offered rate completed (bisection, four seconds per step);
- requests/s of a closed loop of 64 and of a burst (all requests sent together). With `--upstream`,
  the path of upstream's `benchmark_core_model.py`, that program runs in turns with tllm;
  `--upstream-python` is its Python. The client's CPU seconds per 1000 requests are those of 1000
  additional requests, which exclude the start of Python and its imports;
- with `--aiperf`, the path of that program, the same closed loop over HTTP, in turns with AIPerf:
  the same bodies, sent to the `generate` endpoint of the model that is not decoupled.

The server uses the same processors. If it is the limit, the client's loop is not busy, which is
printed, too.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load_aiperf import run_aiperf
from load_clients import IN_FLIGHT, Measured, run_ours, run_upstreams

from trtllm_serve_cli.launch.triton.triton_command import backend_links, stub_environ
from trtllm_serve_cli.launch.triton.triton_install import find_libpython, find_triton

CONFIG = """\
name: "tensorrt_llm"
backend: "python"
max_batch_size: 64
model_transaction_policy {{ decoupled: {decoupled} }}
input [
  {{ name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] }},
  {{ name: "input_lengths" data_type: TYPE_INT32 dims: [ 1 ] reshape: {{ shape: [ ] }} }},
  {{ name: "request_output_len" data_type: TYPE_INT32 dims: [ 1 ] }},
  {{ name: "end_id" data_type: TYPE_INT32 dims: [ 1 ] reshape: {{ shape: [ ] }} optional: true }},
  {{ name: "pad_id" data_type: TYPE_INT32 dims: [ 1 ] reshape: {{ shape: [ ] }} optional: true }},
  {{ name: "streaming" data_type: TYPE_BOOL dims: [ 1 ] optional: true }},
  {{ name: "exclude_input_in_output" data_type: TYPE_BOOL dims: [ 1 ] optional: true }}
]
output [
  {{ name: "output_ids" data_type: TYPE_INT32 dims: [ -1, -1 ] }},
  {{ name: "sequence_length" data_type: TYPE_INT32 dims: [ -1 ] }}
]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
parameters {{ key: "vocab_size" value {{ string_value: "30000" }} }}
"""
MODEL = """\
import numpy as np
import triton_python_backend_utils as pb_utils

IDS = np.zeros((1, 1, 20), np.int32)
LENGTH = np.array([[20]], np.int32)


class TritonPythonModel:
    def initialize(self, args):
        self.is_decoupled = {decoupled}

    def execute(self, requests):
        answers = [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("output_ids", IDS), pb_utils.Tensor("sequence_length", LENGTH)]
            )
            for _ in requests
        ]
        if not self.is_decoupled:
            return answers
        for request, answer in zip(requests, answers):
            request.get_response_sender().send(
                answer, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            )
        return None
"""
FEW = 200
CLOSED_LOOP = f"tllm, {IN_FLIGHT} in flight"
OVER_HTTP = "one answer over HTTP"
RATIOS = {"rate_ratio": "requests_per_s", "cpu_ratio": "cpu_s_per_1000"}
Client = Callable[[int], Measured]


@dataclass(frozen=True)
class Server:
    """The addresses of a Triton server."""

    http: str
    grpc: str


@dataclass(frozen=True)
class Comparison:
    """The clients to compare, by name; `where` has the options that select our server."""

    where: Sequence[str]
    ours: Mapping[str, Client]
    theirs: Mapping[str, Client]


@contextlib.contextmanager
def serving(*, decoupled: bool) -> Iterator[Server]:
    """Run a Triton server with the model."""
    http, grpc = free_ports(2)
    triton = find_triton(os.environ)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        version = folder / "models" / "tensorrt_llm" / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL.format(decoupled=decoupled))
        config = CONFIG.format(decoupled=str(decoupled).lower())
        (version.parent / "config.pbtxt").write_text(config)
        for link, target in backend_links(triton).items():
            (folder / link).parent.mkdir(parents=True, exist_ok=True)
            (folder / link).symlink_to(target)
        command = [
            str(triton.binary),
            f"--model-repository={folder / 'models'}",
            f"--http-port={http}",
            f"--grpc-port={grpc}",
            "--http-address=127.0.0.1",
            "--grpc-address=127.0.0.1",
            "--allow-metrics=false",
            "--exit-timeout-secs=5",
        ]
        if triton.backend_parts is not None:
            command.append(f"--backend-directory={folder / 'backends'}")
        environ = {**os.environ, **stub_environ(triton, find_libpython() or "", os.environ)}
        with (folder / "log").open("w") as log:
            server = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
        try:
            wait_until_ready(http, server, folder / "log")
            yield Server(f"127.0.0.1:{http}", f"127.0.0.1:{grpc}")
        finally:
            server.terminate()
            server.wait()


def free_ports(count: int) -> list[int]:
    """Return ports that are currently free."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_until_ready(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until Triton is ready; exit with its log if it does not become ready."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=1).close()
            return
        time.sleep(0.1)
    sys.exit(f"Triton did not become ready:\n{log.read_text()[-3000:]}")


def find_sustained_rate(where: Sequence[str], highest: float) -> float:
    """Find the rate by bisection between 0 and `highest`."""
    low, high = 0.0, highest
    for _ in range(6):
        rate = (low + high) / 2
        run = run_ours(
            where, round(rate * 4), "--request-rate", f"{rate:.0f}", "--arrival", "constant"
        )
        is_kept = (run.lag_p99_ms or 0.0) < 1.0 and run.per_s > 0.98 * rate
        low, high = (rate, high) if is_kept else (low, rate)
    return low


def plan_comparison(mode: str, server: Server, arguments: argparse.Namespace) -> Comparison:
    """Return the clients to compare in this mode."""
    is_http = mode == OVER_HTTP
    where = ("-i", "http", "-u", server.http) if is_http else ("-u", server.grpc)
    ours: dict[str, Client] = {
        CLOSED_LOOP: lambda n: run_ours(where, n, "--concurrency", str(IN_FLIGHT))
    }
    theirs: dict[str, Client] = {}
    if is_http:
        aiperf = arguments.aiperf
        theirs[f"AIPerf, {IN_FLIGHT} in flight"] = lambda n: run_aiperf(aiperf, server.http, n)
    else:
        ours["tllm, burst"] = lambda n: run_ours(where, n)
        if arguments.upstream is not None:
            script, python = arguments.upstream, arguments.upstream_python
            theirs["upstream, burst"] = lambda n: run_upstreams(
                server.grpc, n, script, python, mode
            )
    return Comparison(where, ours, theirs)


def measure(comparison: Comparison, num_rounds: int, count: int) -> dict[str, Any]:
    """Run all rounds on one server, with the clients in turns."""
    clients = {**comparison.ours, **comparison.theirs}
    rounds = [
        {name: (run(FEW), run(count)) for name, run in clients.items()} for _ in range(num_rounds)
    ]
    result: dict[str, Any] = {
        name: {
            "requests_per_s": statistics.median(each[name][1].per_s for each in rounds),
            "cpu_s_per_1000": statistics.median(
                (each[name][1].cpu_s - each[name][0].cpu_s) / (count - FEW) * 1000
                for each in rounds
            ),
            "busiest_loop": rounds[0][name][1].busiest_loop
            and statistics.median(each[name][1].busiest_loop or 0.0 for each in rounds),
        }
        for name in clients
    }
    for theirs, ours in itertools.product(comparison.theirs, comparison.ours):
        for ratio, figure in RATIOS.items():
            result[ours][ratio] = result[ours][figure] / result[theirs][figure]
    highest = 1.5 * result[CLOSED_LOOP]["requests_per_s"]
    result["sustained_requests_per_s"] = find_sustained_rate(comparison.where, highest)
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=6000)
    parser.add_argument("--upstream", type=Path, help="upstream's benchmark_core_model.py")
    parser.add_argument("--upstream-python", default=sys.executable)
    parser.add_argument(
        "--aiperf", help="path of the program aiperf, which may be in a different environment"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = {}
    modes = ["decoupled", "one answer", *([OVER_HTTP] if arguments.aiperf else [])]
    for mode in modes:
        with serving(decoupled=mode == "decoupled") as server:
            comparison = plan_comparison(mode, server, arguments)
            results[mode] = measure(comparison, arguments.rounds, arguments.requests)
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores, server included")
    for mode, result in results.items():
        sustained = result.pop("sustained_requests_per_s")
        print(f"\n{mode}: {sustained:.0f} requests/s with a p99 schedule lag under 1 ms")
        print(f"{'':<24}requests/s  CPU s per 1000  loop busy   rate/theirs  CPU/theirs")
        for name, row in result.items():
            busy = "" if row["busiest_loop"] is None else f"{row['busiest_loop']:.0%}"
            ratios = "".join(f"{row[key]:>12.2f}" if key in row else "" for key in RATIOS)
            print(
                f"{name:<24}{row['requests_per_s']:>10.0f}{row['cpu_s_per_1000']:>16.3f}"
                f"{busy:>11}  {ratios}"
            )


if __name__ == "__main__":
    main()
