"""Implement `--simulate`, which runs benchmarks on a virtual clock without a server."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trtllm_serve_cli.cli.bench.bench_options import SharedOptions
from trtllm_serve_cli.errors import UnknownModel

if TYPE_CHECKING:
    from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
    from trtllm_serve_cli.bench.run.benchmark import Benchmark
    from trtllm_serve_cli.runtime.engines.sim.timing import Simulation

# Maps options that require a server to their flags. `--simulate` rejects these options.
_SERVER_OPTIONS = {
    "url": "-u",
    "model": "-m",
    "interface": "-i",
    "api": "--api",
    "api_key": "--api-key",
    "tls_ca": "--tls-ca",
    "metrics_url": "--metrics-url",
    "warmup": "--warmup",
    "workers": "--workers",
    "timeout": "--timeout",
    "server_times": "--server-times",
    "sample_interval": "--sample-interval",
}


def open_simulation(
    settings: BenchmarkSettings, name_or_file: str, options: SharedOptions
) -> Benchmark:
    """Return a benchmark that simulates an imported model, or the engine in a timing file.

    Raise:
    - `UnknownModel` if neither the model nor the file exists.
    - `BadParameter` if `options` sets server options.
    - `BadInput` if the timing is unknown or invalid, or if the workload cannot be simulated.
    - Another `TllmError` if the model's engine or repository is invalid.
    """
    from trtllm_serve_cli.bench.simulate.simulate import open_simulated

    _refuse_server_options(options)
    return open_simulated(settings, find_simulation(name_or_file), name_or_file, options.replicas)


def _refuse_server_options(options: SharedOptions) -> None:
    defaults = {field.name: field.default for field in fields(SharedOptions)}
    used = [
        flag for name, flag in _SERVER_OPTIONS.items() if getattr(options, name) != defaults[name]
    ]
    if used:
        raise typer.BadParameter(
            "--simulate runs without a server. Omit the options that "
            f"require a server: {', '.join(used)}."
        )


def find_simulation(name_or_file: str) -> Simulation:
    """Return the timing and limits of a simulated engine, from an imported model or a timing file.

    Raise `UnknownModel` if `name_or_file` is neither an imported model nor a file, or `BadInput` if
    the timing is unknown or invalid. Raise another `TllmError` if the model's engine or repository
    is invalid.
    """
    from trtllm_serve_cli.bench.simulate.imported_simulation import read_imported_simulation
    from trtllm_serve_cli.engine_kinds.sim.build_plan import read_simulation
    from trtllm_serve_cli.paths import find_home
    from trtllm_serve_cli.repository.model.store import find_model

    if Path(name_or_file).is_file():
        return read_simulation(Path(name_or_file))
    if "/" not in name_or_file and (model := find_model(find_home(), name_or_file)):
        return read_imported_simulation(model)
    raise UnknownModel(
        f"{name_or_file!r} cannot be simulated.",
        why="the value is neither the name of an imported model nor the path of a timing file",
        next_step="import a simulated model with `tllm import -m NAME -s SOURCE --engine sim "
        "--gpu h200` (see docs/concepts/simulation.md)",
    )
