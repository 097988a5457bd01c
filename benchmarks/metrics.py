"""What it costs that models count, time and publish.

    python benchmarks/metrics.py [--rounds 5] [--requests 64] [--json]

Serves two copies of the demo model: as they are, and with what counts taken out of the runtime that
lies beside it. They take turns with the same requests (128 tokens in, 64 out, streamed, 16 at once)
while the other sits idle, in alternating order. Prints for both the output tokens per second, and
per second of CPU time of all the server's processes, which a busy machine disturbs less; the
figures are the medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import platform
import statistics
import tempfile
from pathlib import Path
from typing import Any

import psutil

from trtllm_serve_cli import bench, launch
from trtllm_serve_cli.declaration import Declaration, ModelSection, RepositorySection
from trtllm_serve_cli.importing import import_model
from trtllm_serve_cli.paths import find_home

NUM_AT_ONCE, PROMPT_TOKENS, OUTPUT_TOKENS = 16, 128, 64
# File of the runtime -> what takes the counting out of it.
WITHOUT = {
    "request_record.py": "RequestRecord.note_tokens = lambda self, sequence, number: None\n"
    "RequestLedger.close_record = lambda self, record, outcome, why: None\n"
    "RequestLedger._keep_publishing = lambda self: None\n",
    "engine_metrics.py": "EngineMetrics.publish = lambda self, stats: None\n",
}


@dataclasses.dataclass(frozen=True)
class Turn:
    """What one server did in one turn."""

    tokens_per_s: float
    tokens_per_cpu_s: float


def take_out(repository: Path) -> None:
    """Have the models of `repository` count nothing."""
    for name, text in WITHOUT.items():
        for path in repository.glob(f"*/1/tllm_runtime/{name}"):
            path.write_text(f"{path.read_text()}\n\n{text}")


def cpu_s(supervisor_pid: int) -> float:
    """CPU time of a server's processes so far, in seconds."""
    supervisor = psutil.Process(supervisor_pid)
    times = [each.cpu_times() for each in supervisor.children(recursive=True)]
    return sum(each.user + each.system for each in times)


def take_turn(server: Any, num_requests: int, seed: int) -> Turn:
    """Load one server, and measure it."""
    settings = bench.BenchmarkSettings(
        workload=bench.TokenNormDist(PROMPT_TOKENS, 0, OUTPUT_TOKENS, 0),
        load=bench.AtConcurrency(NUM_AT_ONCE),
        num_requests=num_requests,
        seed=seed,
        stream=True,
    )
    pid = server.state.supervisor_pid
    before_s = cpu_s(pid)
    result = bench.run_benchmark(settings, [bench.Target(server.endpoint.grpc)])
    assert not result.error_messages, result.error_messages
    num_tokens = num_requests * OUTPUT_TOKENS
    return Turn(float(result.summary.output_tokens_per_s), num_tokens / (cpu_s(pid) - before_s))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    home = find_home()
    servers = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number, name in enumerate(("with", "without")):
                repository = Path(folder, name)
                import_model(
                    Declaration(ModelSection("demo"), repository=RepositorySection(dir=repository)),
                    home,
                )
                if name == "without":
                    take_out(repository)
                port = 8110 + 10 * number
                ports = {"http_port": port, "grpc_port": port + 1, "metrics_port": port + 2}
                plan = launch.plan_for_this_machine(home, (), ports, repositories=[repository])
                servers[name] = launch.launch(plan, on_progress=lambda loading: None)
            rounds = [
                take_round(servers, arguments.requests, seed)
                for seed in range(arguments.rounds + 1)
            ][1:]
        finally:
            for server in servers.values():
                launch.stop_server(server)
    report(rounds, as_json=arguments.json)


def take_round(servers: dict[str, Any], num_requests: int, seed: int) -> dict[str, Turn]:
    """A turn of each, in alternating order."""
    names = ("with", "without") if seed % 2 else ("without", "with")
    return {name: take_turn(servers[name], num_requests, seed) for name in names}


def report(rounds: list[dict[str, Turn]], *, as_json: bool) -> None:
    """Print the rounds and the medians of their ratios."""
    ratios = {
        field: statistics.median(
            getattr(each["with"], field) / getattr(each["without"], field) for each in rounds
        )
        for field in ("tokens_per_s", "tokens_per_cpu_s")
    }
    machine = f"{platform.machine()}, {multiprocessing.cpu_count()} cores"
    if as_json:
        told = [{name: dataclasses.asdict(turn) for name, turn in each.items()} for each in rounds]
        print(json.dumps({"machine": machine, "rounds": told, "median_ratios": ratios}, indent=2))
        return
    print(f"{'round':>5} {'with':>8} {'without':>8}   {'with':>8} {'without':>8}")
    for number, each in enumerate(rounds, 1):
        with_, without = each["with"], each["without"]
        print(
            f"{number:>5} {with_.tokens_per_s:>8.1f} {without.tokens_per_s:>8.1f}   "
            f"{with_.tokens_per_cpu_s:>8.1f} {without.tokens_per_cpu_s:>8.1f}"
        )
    print(
        f"with : without is {ratios['tokens_per_s']:.4f} by tokens/s (left), "
        f"{ratios['tokens_per_cpu_s']:.4f} by tokens per second of CPU (right), on {machine}"
    )


if __name__ == "__main__":
    main()
