"""Measure the duration of `tllm start` for the demo model, and the server's memory by part.

    python benchmarks/start.py [--rounds 3] [--json]

Starts and stops the server repeatedly; ready means that a token was generated. The memory of the
last server is measured when it is ready, and after 64 requests of 128 tokens in and 20 out, sent
together. Shared pages are counted once (PSS).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
from trtllm_serve_cli.bench.model.arrivals import AllAtOnce
from trtllm_serve_cli.bench.model.served_model import Target
from trtllm_serve_cli.bench.run.benchmark import run_benchmark
from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist
from trtllm_serve_cli.importing.declaration import Declaration, ModelSection
from trtllm_serve_cli.importing.importer import import_model
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.planning.local_plan import plan_for_this_machine
from trtllm_serve_cli.launch.servers.running import RunningServer
from trtllm_serve_cli.launch.supervisor.lifecycle import launch
from trtllm_serve_cli.launch.supervisor.server_processes import measure_memory
from trtllm_serve_cli.launch.supervisor.stopping import stop_server
from trtllm_serve_cli.paths import find_home

MIB = 1 << 20


def start_s(plan: LaunchPlan) -> tuple[float, RunningServer]:
    """Start a server, and return the seconds until it was ready."""
    started_s = time.perf_counter()
    server = launch(plan, on_progress=lambda loading: None)
    return time.perf_counter() - started_s, server


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    home = find_home()
    import_model(Declaration(ModelSection("demo")), home)
    options = {"http_port": 8100, "grpc_port": 8101, "metrics_port": 8102}
    times_s: list[float] = []
    memory: dict[str, dict[str, int]] = {}
    for number in range(arguments.rounds):
        plan = plan_for_this_machine(home, ["demo"], options)
        took_s, server = start_s(plan)
        times_s.append(took_s)
        try:
            if number == arguments.rounds - 1:
                memory["when ready"] = measure_memory(server)
                settings = BenchmarkSettings(
                    TokenNormDist(128, 0, 20, 0), AllAtOnce(), num_requests=64
                )
                run_benchmark(settings, [Target(server.endpoint.grpc)])
                memory["after 64 requests"] = measure_memory(server)
        finally:
            stop_server(server)
    report(times_s, memory, as_json=arguments.json)


def report(times_s: list[float], memory: dict[str, dict[str, int]], *, as_json: bool) -> None:
    """Print the times, and the memory by part."""
    if as_json:
        print(json.dumps({"start_s": times_s, "memory_bytes": memory}, indent=2))
        return
    shown = ", ".join(f"{each:.2f}" for each in times_s)
    print(f"ready after {statistics.median(times_s):.2f} s (median of {shown})")
    for when, parts in memory.items():
        print(f"memory {when}: {sum(parts.values()) / MIB:.0f} MiB")
        for part, size in sorted(parts.items(), key=lambda item: -item[1]):
            print(f"  {part:<24} {size / MIB:6.0f} MiB")


if __name__ == "__main__":
    main()
