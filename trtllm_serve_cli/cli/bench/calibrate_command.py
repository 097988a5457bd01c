"""Implement `tllm bench calibrate`, which fits a simulated engine's timing to measured runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.options import JsonOption
from trtllm_serve_cli.cli.shared.tables import FittedTable

if TYPE_CHECKING:
    from trtllm_serve_cli.bench.simulate.calibrate import Calibration
    from trtllm_serve_cli.runtime.engines.sim.timing import SchedulerLimits

_COLUMNS = ("Run", "Metric", "Measured", "Simulated", "Deviation")


def calibrate(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULT_DIR...",
            help="Result folders written by `tllm bench --stream --output`.",
        ),
    ],
    target: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Output file for the calibrated timing, for use with --simulate. The timing is "
            "also printed. Default: no file.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--model",
            metavar="NAME",
            help=(
                "Model that was measured. Its scheduler limits are used for the simulation. "
                "Without this option, the limits are 256 sequences, 8192 tokens per step, and "
                "1,048,576 tokens in the KV cache."
            ),
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fit a simulated engine's timing to measured runs and print the deviations.

    The runs must cover different prompt lengths and different concurrency levels. Use two runs with
    different loads, or one run with --request-rate.

    Example:  tllm bench calibrate alone/ many/ -o timing.json
    """
    from trtllm_serve_cli.bench.report.result_reader import protect_results, read_results
    from trtllm_serve_cli.bench.simulate.calibrate import calibrate, runs_of, write_timing

    limits = _read_limits(model) if model else None
    results = read_results(folders)
    protect_results(results, [] if target is None else [target])
    found = calibrate([run for result in results for run in runs_of(result)], limits)
    _show(found, as_json=as_json)
    if target is not None:
        write_timing(found.simulation, target)
        path = shlex.quote(str(target))
        output.notify(f"Timing file: {path}")
        output.notify(f"Next: tllm bench token-norm-dist --simulate {path} --request-rate 10")


def _read_limits(model: str) -> SchedulerLimits:
    from trtllm_serve_cli.bench.simulate.imported_simulation import read_scheduler_limits
    from trtllm_serve_cli.paths import find_home
    from trtllm_serve_cli.repository.model.model_repository import open_repository
    from trtllm_serve_cli.repository.model.store import load_model
    from trtllm_serve_cli.runtime.engines.sim.timing import SchedulerLimits

    repository = open_repository(load_model(find_home(), model).path)
    return read_scheduler_limits(repository, SchedulerLimits())


def _show(found: Calibration, *, as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        comparisons = [asdict(each) | {"deviation": each.deviation} for each in found.comparisons]
        statistics = {"num_steps": found.num_steps, "median_error": found.median_error}
        output.show_json({**found.simulation.to_json(), **statistics, "comparisons": comparisons})
    else:
        timing = asdict(found.simulation.timing)
        rows = [(name, f"{value * 1e6:.4g}") for name, value in timing.items() if name != "jitter"]
        deviations = [
            (each.run, each.figure, f"{each.measured:.4g}", f"{each.simulated:.4g}",
             f"{each.deviation:+.1%}")
            for each in found.comparisons
        ]  # fmt: skip
        output.show_tables(
            FittedTable(("Part of a step", "Microseconds"), rows, is_numeric=True),
            FittedTable(_COLUMNS, deviations, is_numeric=True),
        )
    output.notify(
        f"The timing is based on {found.num_steps} steps. The median deviation is "
        f"{found.median_error:.1%}."
    )
    if not found.knows_request_s:
        output.notify(
            "The server's overhead per request is unknown, because no request ran alone. Next: add "
            "a run with --concurrency 1"
        )
