"""What is particular to repositories whose engine is simulated.

What its scheduler may do is said by upstream's parameters, as of any engine; how long its steps
take stays in the engine's folder.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtllm_serve_cli.build.engine import read_engine
from trtllm_serve_cli.errors import BadInput, RepositoryError
from trtllm_serve_cli.repository.model.model_config import ServingOptions
from trtllm_serve_cli.repository.model.model_repository import OpenRepository, open_repository
from trtllm_serve_cli.repository.model.store import ImportedModel
from trtllm_serve_cli.runtime.engines.engine_arguments import read_flag
from trtllm_serve_cli.runtime.engines.sim.timing import SchedulerLimits, Simulation, parse_limits

if TYPE_CHECKING:
    from trtllm_serve_cli.build.engine import Engine

# What `tensorrt_llm` calls them, whatever its engine.
_LIMITS = {
    "max_batch_size": "max_num_seqs",
    "max_num_tokens": "max_num_tokens",
    "max_tokens_in_paged_kv_cache": "max_tokens_in_paged_kv_cache",
    "batch_scheduler_policy": "batch_scheduler_policy",
    "enable_chunked_context": "enable_chunked_context",
    "enable_kv_cache_reuse": "enable_kv_cache_reuse",
}


def sim_values(engine: Engine, options: ServingOptions, max_seq_len: int) -> dict[str, str]:
    """Parameter -> value, as the simulation and the options ask."""
    limits = engine.simulation.limits if engine.simulation else SchedulerLimits()
    max_batch_size = str(options.max_batch_size or limits.max_batch_size)
    return {
        "triton_max_batch_size": max_batch_size,
        "max_num_seqs": max_batch_size,
        "max_seq_len": str(max_seq_len),
        "max_num_tokens": str(options.max_num_tokens or limits.max_num_tokens),
        "max_tokens_in_paged_kv_cache": str(limits.max_tokens_in_paged_kv_cache),
        "batch_scheduler_policy": limits.batch_scheduler_policy,
        "enable_chunked_context": str(limits.enable_chunked_context).lower(),
        "enable_kv_cache_reuse": str(limits.enable_kv_cache_reuse).lower(),
        "tokenizer_dir": str(engine.path),
        "engine_dir": str(engine.path),
    }


def read_simulation_of(model: ImportedModel) -> Simulation:
    """What the engine of an imported model simulates, with what was set since.

    Raises `BadInput` for a model whose engine is a real one.
    """
    simulation = read_engine(model.engine_path).simulation if model.engine_kind == "sim" else None
    if simulation is None:
        raise BadInput(
            f"The engine of {model.name} is not simulated.",
            why=f"it is of the kind {model.engine_kind}, whose timing is not known",
            next_step="measure it, and make a timing of that: tllm bench calibrate RESULT_DIR "
            "-o timing.json",
        )
    limits = read_scheduler_limits(open_repository(model.path), simulation.limits)
    return replace(simulation, limits=limits)


def read_scheduler_limits(repository: OpenRepository, usual: SchedulerLimits) -> SchedulerLimits:
    """The limits that the parameters of the repository say, of any engine kind.

    Raises `RepositoryError` for values that no scheduler can have.
    """
    manifest = repository.manifest
    known = {**manifest.get("parameters", {}), **manifest.get("set", {})}
    said: dict[str, str] = {}
    for limit, parameter in _LIMITS.items():
        value = known.get(parameter, "")
        if repository.layout == "inflight":
            value = repository.value("tensorrt_llm", f"parameters.{parameter}")
        if value:
            said[limit] = value
    try:
        typed = {limit: _typed(value, getattr(usual, limit)) for limit, value in said.items()}
        return parse_limits({"tokens_per_block": usual.tokens_per_block, **typed})
    except ValueError as error:
        raise RepositoryError(
            f"{repository.path} does not have the limits of a scheduler.",
            why=str(error),
            next_step=f"tllm validate {repository.target}",
        ) from error


def _typed(value: str, like: object) -> object:
    if isinstance(like, bool):
        return read_flag(value)
    # The LLM API has its policies in capitals.
    return int(value) if isinstance(like, int) else value.lower()
