"""Measure the cost of metrics: counting, timing and publishing in the models.

    python benchmarks/metrics.py [--rounds 5] [--requests 64] [--output-tokens 64] [--step-ms 20]
                                 [--json]

Serves two copies of the demo model: one unchanged, and one without the counting code in its copy of
the runtime. They process the same requests (128 tokens in, streamed, 16 in flight) in turns, in
alternating order, while the other is idle. Prints the output tokens per second of both, and the CPU
time per token of all processes except the engine worker. The worker does not count metrics, and its
CPU time varies by more than that of all other processes. The results are the median ratio of
tokens/s, which requires an idle machine, and the additional CPU time as a share of the total.

With `--step-ms`, the engine is simulated with steps of that duration: as with an engine on a GPU,
the models do not share the processors with it, and its speed does not vary. Use 16 long responses
then, because a new request waits for the next step.
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

from cpu import CLIENT, WORKER, cpu_seconds
from simulated import import_simulated

from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
from trtllm_serve_cli.bench.model.arrivals import AtConcurrency
from trtllm_serve_cli.bench.model.served_model import Target
from trtllm_serve_cli.bench.run.benchmark import run_benchmark
from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist
from trtllm_serve_cli.importing.declaration import Declaration, ModelSection, RepositorySection
from trtllm_serve_cli.importing.importer import import_model
from trtllm_serve_cli.launch.planning.local_plan import plan_for_this_machine
from trtllm_serve_cli.launch.servers.running import RunningServer
from trtllm_serve_cli.launch.supervisor.lifecycle import launch
from trtllm_serve_cli.launch.supervisor.stopping import stop_server
from trtllm_serve_cli.paths import Home, find_home

CONCURRENCY, PROMPT_TOKENS = 16, 128
# File of the runtime -> code that disables its counting.
WITHOUT = {
    "requests/request_record.py": "RequestRecord.add_tokens = lambda self, sequence, n: None\n"
    "RequestLedger.close_record = lambda self, record, outcome, why: None\n"
    "RequestLedger._keep_publishing = lambda self: None\n",
    "telemetry/engine_metrics.py": "EngineMetrics.publish = lambda self, stats: None\n",
}


@dataclasses.dataclass(frozen=True)
class Turn:
    """The result of one turn; CPU time per token, of all processes and without the worker."""

    tokens_per_s: float
    cpu_ms: float
    models_cpu_ms: float


def remove_counting(repository: Path) -> None:
    """Disable the metrics of the models in `repository`."""
    for name, text in WITHOUT.items():
        paths = list(repository.glob(f"*/1/tllm_runtime/{name}"))
        if not paths:
            raise FileNotFoundError(f"no model in {repository} has tllm_runtime/{name}")
        for path in paths:
            path.write_text(f"{path.read_text()}\n\n{text}")


def cpu_s(server: RunningServer) -> tuple[float, float]:
    """Return the CPU seconds of a server: of all processes, and without the worker."""
    seconds = cpu_seconds(server)
    total_s = sum(seconds.values()) - seconds[CLIENT]
    return total_s, total_s - seconds[WORKER]


def take_turn(server: RunningServer, num_requests: int, output_tokens: int, seed: int) -> Turn:
    """Run a benchmark on one server."""
    settings = BenchmarkSettings(
        workload=TokenNormDist(PROMPT_TOKENS, 0, output_tokens, 0),
        load=AtConcurrency(CONCURRENCY),
        num_requests=num_requests,
        seed=seed,
        stream=True,
    )
    before = cpu_s(server)
    result = run_benchmark(settings, [Target(server.endpoint.grpc)])
    assert not result.error_messages, result.error_messages
    num_tokens = num_requests * output_tokens
    took_ms = [
        1000 * (now - then) / num_tokens for now, then in zip(cpu_s(server), before, strict=True)
    ]
    return Turn(float(result.summary.rates["output_tokens_per_s"]), *took_ms)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--step-ms", type=float, help="simulate the engine")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    home = find_home()
    servers: dict[str, RunningServer] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number, name in enumerate(("with", "without")):
                repository = Path(folder, name)
                import_into(repository, arguments.step_ms, home)
                if name == "without":
                    remove_counting(repository)
                port = 8110 + 10 * number
                ports = {"http_port": port, "grpc_port": port + 1, "metrics_port": port + 2}
                plan = plan_for_this_machine(home, (), ports, repositories=[repository])
                servers[name] = launch(plan, on_progress=lambda loading: None)
            rounds = [
                take_round(servers, arguments.requests, arguments.output_tokens, seed)
                for seed in range(arguments.rounds + 1)
            ][1:]
        finally:
            for server in servers.values():
                stop_server(server)
    report(rounds, as_json=arguments.json)


def import_into(repository: Path, step_ms: float | None, home: Home) -> None:
    """Import the demo, or its tokenizer with a simulated engine."""
    if step_ms is not None:
        import_simulated(home, f"demo-sim-{step_ms:g}", step_ms, repository=repository)
        return
    declaration = Declaration(ModelSection("demo"), repository=RepositorySection(dir=repository))
    import_model(declaration, home)


def take_round(
    servers: dict[str, RunningServer], num_requests: int, output_tokens: int, seed: int
) -> dict[str, Turn]:
    """Run a turn on each server, in alternating order."""
    names = ("with", "without") if seed % 2 else ("without", "with")
    return {name: take_turn(servers[name], num_requests, output_tokens, seed) for name in names}


def report(rounds: list[dict[str, Turn]], *, as_json: bool) -> None:
    """Print the rounds and the results."""
    ratio = statistics.median(
        each["with"].tokens_per_s / each["without"].tokens_per_s for each in rounds
    )
    grown_ms = statistics.median(
        each["with"].models_cpu_ms - each["without"].models_cpu_ms for each in rounds
    )
    share = grown_ms / statistics.median(each["with"].cpu_ms for each in rounds)
    machine = f"{platform.machine()}, {multiprocessing.cpu_count()} cores"
    if as_json:
        turns = [{name: dataclasses.asdict(turn) for name, turn in each.items()} for each in rounds]
        result: dict[str, Any] = {"machine": machine, "rounds": turns}
        result |= {"median_ratio": ratio, "cpu_ms_per_token": grown_ms, "cpu_share": share}
        print(json.dumps(result, indent=2))
        return
    print("      tokens/s           CPU ms per token without the engine's")
    print(f"{'round':>5} {'with':>8} {'without':>8}   {'with':>8} {'without':>8}")
    for number, each in enumerate(rounds, 1):
        with_, without = each["with"], each["without"]
        print(
            f"{number:>5} {with_.tokens_per_s:>8.1f} {without.tokens_per_s:>8.1f}   "
            f"{with_.models_cpu_ms:>8.3f} {without.models_cpu_ms:>8.3f}"
        )
    print(
        f"with : without is {ratio:.4f} by tokens/s; counting takes {grown_ms:.3f} ms per token, "
        f"{share:.2%} of the CPU time, on {machine}"
    )


if __name__ == "__main__":
    main()
