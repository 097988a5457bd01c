"""How close the bench comes to times that are known.

    python benchmarks/accuracy.py [--rounds 3] [--json]

Serves simulated engines, one after the other, and measures each with `tllm bench`: 1, 32 and 256
requests in flight, sent within 51 ms. A step takes 20, 50 or 250 ms, and 0.125 ms for each token of
a prompt; the virtual clock says what the medians have to be. Allowed is 1 % of that or 0.2 ms,
whichever is larger; the exit code is 1 when a median is farther off. Beside that it prints the
processor time of each process for a streamed token (the server's with the warm-up's tokens).

The first request makes a step of its own, in which all others arrive. What Triton adds is in the
measured times, since nobody can tell it apart from here: a few milliseconds to a first token, and
with 256 in flight the tokens of a step are some tens of milliseconds on their way. So a prompt, or
all of them together, takes long enough for that to be less than 1 %; and of a gap between two
tokens both ends are as late.
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
from trtllm_serve_cli.launch.supervisor.lifecycle import launch, stop_server
from trtllm_serve_cli.paths import Home, find_home

PORTS = {"http_port": 8110, "grpc_port": 8111, "metrics_port": 8112}
# One after the other, so that on the virtual clock, too, the first makes a step of its own.
BURST = ("--request-rate", "5000", "--arrival", "constant")
# In flight -> how long a step takes, and what is sent.
RUNS = {
    1: (0.020, ("--num-requests", "5", "--concurrency", "1", "--input-mean", "4000")),
    32: (0.050, ("--num-requests", "32", "--input-mean", "400", *BURST)),
    256: (0.250, ("--num-requests", "256", *BURST)),
}
PROMPT_TOKEN_S = 0.000125
# All prompts fit into a step, and none is known from the round before.
LIMITS = {"max_num_tokens": 65536, "enable_kv_cache_reuse": False}
OUTPUT_TOKENS = 40
METRICS = {"TTFT p50": "ttft", "ITL p50": "itl"}


@dataclass(frozen=True)
class Row:
    """Milliseconds."""

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
    """One engine's: every median, and the milliseconds of CPU time per token by process."""

    rows: tuple[Row, ...]
    cpu_ms: dict[str, float]


def bench(*options: str) -> dict[str, Any]:
    """What one run of the command prints as JSON."""
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
    """Every median of one engine, known and as the median of `rounds` runs."""
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
    """The demo's tokenizer with such a timing; returns the model's name."""
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
    """Print them as tables."""
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
