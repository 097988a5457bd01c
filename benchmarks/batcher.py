"""Measure the effect of Triton's dynamic batcher on a model that accepts requests immediately.

    python benchmarks/batcher.py [--bursts 25] [--requests 1500] [--json]

Serves two copies of a simulated engine: as rendered by tllm, and with upstream's `dynamic_batching`
in the config of `tensorrt_llm`. Both receive alternating bursts of 16 requests while idle. The
script counts the bursts in which a first token took more than 0.4 s (20 steps), because the batcher
slept. It also measures the throughput that the batcher should improve: requests per second with 64
in flight, 4 tokens each and a step of 1 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
from pathlib import Path
from typing import Any

from simulated import import_simulated

from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
from trtllm_serve_cli.bench.model.arrivals import AtConcurrency
from trtllm_serve_cli.bench.model.served_model import Target
from trtllm_serve_cli.bench.run.benchmark import run_benchmark
from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist
from trtllm_serve_cli.launch.planning.local_plan import plan_for_this_machine
from trtllm_serve_cli.launch.servers.running import RunningServer
from trtllm_serve_cli.launch.supervisor.lifecycle import launch
from trtllm_serve_cli.launch.supervisor.stopping import stop_server
from trtllm_serve_cli.paths import Home, find_home

WITHOUT, WITH = "without dynamic_batching", "with dynamic_batching"
BLOCK = """
dynamic_batching {
  preferred_batch_size: [ 64 ]
  max_queue_delay_microseconds: 0
  default_queue_policy { allow_timeout_override: true }
}
"""
BURST, IN_FLIGHT, NUM_TOKENS = 16, 64, 4
ASLEEP_MS = 400
NUM_RATES = 5


def run_requests(server: RunningServer, in_flight: int, num_requests: int, seed: int) -> Any:
    """Return the summary of a benchmark with `num_requests`."""
    settings = BenchmarkSettings(
        TokenNormDist(128, 0, NUM_TOKENS, 0),
        AtConcurrency(in_flight),
        num_requests,
        seed=seed,
        stream=True,
    )
    result = run_benchmark(settings, [Target(server.endpoint.grpc)])
    assert not result.error_messages, result.error_messages
    return result.summary


def count_asleep(servers: dict[str, RunningServer], num_bursts: int) -> dict[str, int]:
    """Count the bursts to each server in which the batcher slept."""
    asleep = dict.fromkeys(servers, 0)
    for seed in range(num_bursts):
        for which, server in servers.items():
            asleep[which] += (
                run_requests(server, BURST, BURST, seed).times["ttft"].max_ms > ASLEEP_MS
            )
    return asleep


def measure_rates(servers: dict[str, RunningServer], num_requests: int) -> dict[str, float]:
    """Return each server's median of completed requests per second."""
    rates: dict[str, list[float]] = {which: [] for which in servers}
    for seed in range(NUM_RATES):
        for which, server in servers.items():
            summary = run_requests(server, IN_FLIGHT, num_requests, seed)
            rates[which].append(summary.rates["completed_requests_per_s"])
    return {which: statistics.median(values) for which, values in rates.items()}


def serve(home: Home, folder: Path, step_ms: float) -> dict[str, RunningServer]:
    """Serve both copies, each in a separate server."""
    servers: dict[str, RunningServer] = {}
    for number, which in enumerate((WITHOUT, WITH)):
        repository = folder / f"{number}-{step_ms:g}"
        import_simulated(home, "batched", step_ms, repository=repository)
        config = repository / "tensorrt_llm" / "config.pbtxt"
        assert "dynamic_batching" not in config.read_text()
        if which == WITH:
            config.write_text(config.read_text() + BLOCK)
        port = 8130 + 10 * number
        ports = {"http_port": port, "grpc_port": port + 1, "metrics_port": port + 2}
        plan = plan_for_this_machine(home, (), ports, repositories=[repository])
        servers[which] = launch(plan, on_progress=lambda loading: None)
    return servers


def stop(servers: dict[str, RunningServer]) -> None:
    for server in servers.values():
        stop_server(server)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bursts", type=int, default=25)
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    home = find_home()
    with tempfile.TemporaryDirectory() as folder:
        servers = serve(home, Path(folder), 20)
        try:
            asleep = count_asleep(servers, arguments.bursts)
        finally:
            stop(servers)
        servers = serve(home, Path(folder), 1)
        try:
            rates = measure_rates(servers, arguments.requests)
        finally:
            stop(servers)
    if arguments.json:
        print(json.dumps({"asleep": asleep, "requests_per_s": rates}, indent=2))
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores")
    for which in (WITHOUT, WITH):
        print(
            f"{which:24}  asleep in {asleep[which]} of {arguments.bursts} bursts, "
            f"{rates[which]:.0f} requests/s"
        )


if __name__ == "__main__":
    main()
