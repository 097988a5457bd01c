"""`--virtual` of `tllm bench`: the same run on a virtual clock, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trtllm_serve_cli.cli.bench_options import CommonOptions
from trtllm_serve_cli.errors import UnknownModel

if TYPE_CHECKING:
    from trtllm_serve_cli.bench import BenchmarkResult, BenchmarkSettings
    from trtllm_serve_cli.runtime.sim_timing import Simulation


def simulate(settings: BenchmarkSettings, common: CommonOptions) -> BenchmarkResult:
    """The result of such a run. Raises `UnknownModel` or `BadInput` for what is no simulation."""
    from trtllm_serve_cli.bench.virtual import simulate_benchmark

    assert common.virtual is not None
    if common.url or common.model or common.server_times:
        raise typer.BadParameter("--virtual asks no server: leave -u, -m and --server-times out.")
    found = find_simulation(common.virtual)
    return simulate_benchmark(settings, found, common.virtual, common.replicas)


def find_simulation(named: str) -> Simulation:
    """That of an imported model, or of a file."""
    from trtllm_serve_cli.build.sim import read_simulation
    from trtllm_serve_cli.paths import find_home
    from trtllm_serve_cli.repository import find_model
    from trtllm_serve_cli.repository.sim import read_simulation_of

    if Path(named).is_file():
        return read_simulation(Path(named))
    if "/" not in named and (model := find_model(find_home(), named)):
        return read_simulation_of(model)
    raise UnknownModel(
        f"There is nothing to simulate called {named!r}.",
        why="it is neither an imported model nor a file",
        next_step="tllm import -m NAME -s SOURCE --engine sim --gpu h200   (docs/simulation.md)",
    )
