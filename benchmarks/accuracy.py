"""Measure how accurately `tllm bench` reports known times.

    python benchmarks/accuracy.py [--rounds 3] [--json]

Serves simulated engines one after the other, and measures each with `tllm bench`: 1, 32 and 256
requests in flight, sent within 51 ms. A step takes 20, 50 or 250 ms, plus 0.125 ms per prompt
token. The virtual clock gives the expected medians. The tolerance is 1 % or 0.2 ms, whichever is
larger; if a median exceeds it, the exit code is 1. The script also prints the CPU time of each
process per streamed token (the server's includes the warm-up tokens).

The first request runs in a separate step, during which all others arrive. The measured times
include Triton's overhead, which cannot be separated: a few milliseconds to a first token, and some
tens of milliseconds for the tokens of a step with 256 requests in flight. Prompts are long enough
that this is less than 1 %. A gap between two tokens is not affected: both tokens are equally late.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cpu import CLIENT, cpu_seconds

from trtllm_serve_cli.catalog.entries import resolve_alias
from trtllm_serve_cli.importing.declaration import Declaration, EngineSection, ModelSection
from trtllm_serve_cli.importing.importer import import_model
from trtllm_serve_cli.launch.planning.local_plan import plan_for_this_machine
from trtllm_serve_cli.launch.supervisor.lifecycle import launch
from trtllm_serve_cli.launch.supervisor.stopping import stop_server
from trtllm_serve_cli.paths import Home, find_home

PORTS = {"http_port": 8110, "grpc_port": 8111, "metrics_port": 8112}
# Sent one after the other, so that the first runs in a separate step on the virtual clock, too.
BURST = ("--request-rate", "5000", "--arrival", "constant")
# Requests in flight -> duration of a step, and options of the load.
RUNS = {
    1: (0.020, ("--num-requests", "5", "--concurrency", "1", "--input-mean", "4000")),
    32: (0.050, ("--num-requests", "32", "--input-mean", "400", *BURST)),
    256: (0.250, ("--num-requests", "256", *BURST)),
}
PROMPT_TOKEN_S = 0.000125
# All prompts fit into a step, and none is cached from the previous round.
LIMITS = {"max_num_tokens": 65536, "enable_kv_cache_reuse": False}
OUTPUT_TOKENS = 40
METRICS = {"TTFT p50": "ttft", "ITL p50": "itl"}


@dataclass(frozen=True)
class Row:
    """An expected and a measured median, in milliseconds."""

    in_flight: int
    figure: str
    known: float
    measured: float

    @property
    def off(self) -> float:
        return self.measured - self.known

    @property
    def allowed(self) -> float:
        return max(0.01 * self.known, 0.2)


@dataclass(frozen=True)
class EngineResult:
    """The results of one engine: all medians, and the CPU time (ms) per token by process."""

    rows: tuple[Row, ...]
    cpu_ms: dict[str, float]


def bench(*options: str) -> dict[str, Any]:
    """Run the command, and return its JSON output."""
    command = (
        sys.executable, "-m", "trtllm_serve_cli.cli.main", "bench", "token-norm-dist",
        "--stream", "--json", "--input-stdev", "0",
        "--output-mean", str(OUTPUT_TOKENS), "--output-stdev", "0", *options,
    )  # fmt: skip
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    result: dict[str, Any] = json.loads(output)
    assert result["summary"]["num_failed"] == 0, result["errors"]
    return result


def measure(home: Home, in_flight: int, rounds: int) -> EngineResult:
    """Return the expected medians of an engine, and the median of `rounds` measurements."""
    step_s, options = RUNS[in_flight]
    name = import_engine(home, step_s)
    known = bench("--simulate", name, *options)
    plan = plan_for_this_machine(home, [name], PORTS)
    server = launch(plan, on_progress=lambda loading: None)
    try:
        run_options = ("-u", server.endpoint.grpc, "--warmup", str(in_flight), *options)
        before = cpu_seconds(server)
        runs = [bench(*run_options) for _ in range(rounds)]
        after = cpu_seconds(server)
    finally:
        stop_server(server)
    rows = [
        Row(
            in_flight,
            title,
            known["summary"][metric]["p50_ms"],
            statistics.median(run["summary"][metric]["p50_ms"] for run in runs),
        )
        for title, metric in METRICS.items()
    ]
    num_tokens = sum(run["summary"]["num_output_tokens"] for run in runs)
    num_served = num_tokens + rounds * in_flight * OUTPUT_TOKENS
    cpu_ms = {
        part: 1000 * (seconds - before.get(part, 0.0)) / num_served
        for part, seconds in after.items()
        if part != CLIENT
    }
    cpu_ms["tllm bench"] = 1000 * sum(run["client"]["cpu_s"] for run in runs) / num_tokens
    return EngineResult(tuple(rows), cpu_ms)


def import_engine(home: Home, step_s: float) -> str:
    """Import the demo's tokenizer with a simulated engine, and return the model's name."""
    name = f"accuracy-sim-{step_s * 1000:.0f}"
    with tempfile.TemporaryDirectory() as folder:
        timing = Path(folder, "timing.json")
        parts = {"step_s": step_s, "prompt_token_s": PROMPT_TOKEN_S}
        timing.write_text(json.dumps({"timing": parts, "limits": LIMITS}))
        model = ModelSection(name, resolve_alias("demo").source)
        import_model(Declaration(model, EngineSection("sim", timing=timing)), home)
    return name


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    home = find_home()
    found = {in_flight: measure(home, in_flight, arguments.rounds) for in_flight in RUNS}
    rows = [row for each in found.values() for row in each.rows]
    if arguments.json:
        output = {
            "rows": [asdict(row) | {"off": row.off} for row in rows],
            "cpu_ms_per_token": {in_flight: each.cpu_ms for in_flight, each in found.items()},
        }
        print(json.dumps(output, indent=2))
    else:
        show(rows, found)
    sys.exit(any(abs(row.off) > row.allowed for row in rows))


def show(rows: Sequence[Row], found: Mapping[int, EngineResult]) -> None:
    """Print the results as tables."""
    print("in flight  figure      known   measured      off  allowed   (ms)")
    for row in rows:
        print(f"{row.in_flight:9}  {row.figure:8} {row.known:8.2f} {row.measured:10.2f} "
              f"{row.off:+8.2f} {row.allowed:8.2f}")  # fmt: skip
    print("\nin flight  CPU time per token (ms)")
    for in_flight, each in found.items():
        for part, cpu_ms in each.cpu_ms.items():
            if round(cpu_ms, 2):
                print(f"{in_flight:9}  {part:40} {cpu_ms:6.2f}")


if __name__ == "__main__":
    main()
