"""Configure the simulation of an imported model with the limits from its model repository."""

from __future__ import annotations

from dataclasses import replace

from trtllm_serve_cli.engine_kinds.dispatch import read_details
from trtllm_serve_cli.errors import BadInput, RepositoryError
from trtllm_serve_cli.repository.model.model_repository import (
    UPSTREAM_LAYOUTS,
    OpenRepository,
    open_repository,
)
from trtllm_serve_cli.repository.model.store import ImportedModel
from trtllm_serve_cli.runtime.engines.engine_arguments import read_flag
from trtllm_serve_cli.runtime.engines.sim.timing import SchedulerLimits, Simulation, parse_limits

# Maps each scheduler limit to the model repository's parameter that sets the limit.
_LIMITS = {
    "max_batch_size": "max_num_seqs",
    "max_num_tokens": "max_num_tokens",
    "max_tokens_in_paged_kv_cache": "max_tokens_in_paged_kv_cache",
    "batch_scheduler_policy": "batch_scheduler_policy",
    "enable_chunked_context": "enable_chunked_context",
    "enable_kv_cache_reuse": "enable_kv_cache_reuse",
}


def read_imported_simulation(model: ImportedModel) -> Simulation:
    """Return the simulation of an imported model, with the limits from its model repository.

    Raise `BadInput` if the step timing of the model's engine is unknown. Raise `BuildFailed` if an
    engine file is invalid. Raise `RepositoryError` if the repository or its limits are invalid.
    """
    simulation = read_details(model.engine_kind, model.engine_path)
    if not isinstance(simulation, Simulation):
        raise BadInput(
            f"The engine of {model.name!r} cannot be simulated.",
            why=f"the step timing of {model.engine_kind} engines is unknown",
            next_step="benchmark the model, run `tllm bench calibrate DIR -o timing.json` on the "
            "result, then pass --simulate timing.json",
        )
    limits = read_scheduler_limits(open_repository(model.path), simulation.limits)
    return replace(simulation, limits=limits)


def read_scheduler_limits(repository: OpenRepository, defaults: SchedulerLimits) -> SchedulerLimits:
    """Return the scheduler limits in a model repository of any engine kind.

    The repository does not set `tokens_per_block`, which is copied from `defaults`. Any other limit
    that the repository does not set has the default value of `SchedulerLimits`. Raise
    `RepositoryError` if a value is invalid.
    """
    manifest = repository.manifest
    parameters = {**manifest.get("parameters", {}), **manifest.get("set", {})}
    limits: dict[str, str] = {}
    for limit, parameter in _LIMITS.items():
        value = parameters.get(parameter, "")
        if repository.layout in UPSTREAM_LAYOUTS:
            value = repository.value("tensorrt_llm", f"parameters.{parameter}")
        if value:
            limits[limit] = value
    try:
        typed = {limit: _typed(value, getattr(defaults, limit)) for limit, value in limits.items()}
        return parse_limits({"tokens_per_block": defaults.tokens_per_block, **typed})
    except ValueError as error:
        raise RepositoryError(
            f"The model repository {repository.path} contains invalid scheduler limits.",
            why=str(error),
            next_step=f"check the repository with `tllm validate {repository.target}`",
        ) from error


def _typed(value: str, default: object) -> object:
    if isinstance(default, bool):
        return read_flag(value)
    # Convert policies to lowercase: the LLM API uses uppercase names, which `parse_limits` rejects.
    return int(value) if isinstance(default, int) else value.lower()
