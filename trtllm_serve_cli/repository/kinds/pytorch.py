"""What is particular to repositories whose engine is TensorRT-LLM's LLM API.

Its arguments are the entries of `config.pbtxt` that upstream has a parameter for, and for the rest
one entry with a JSON object; in the llmapi layout all of them are in `model.yaml`, by their own
names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trtllm_serve_cli.errors import BadInput, RepositoryError
from trtllm_serve_cli.repository.kinds.checkpoints import MAX_BATCH_SIZE, MAX_NUM_TOKENS, values_of
from trtllm_serve_cli.repository.model.instances import front_ends
from trtllm_serve_cli.repository.model.model_config import ServingOptions
from trtllm_serve_cli.runtime.engines.engine_arguments import Arguments, merge_arguments
from trtllm_serve_cli.runtime.engines.pytorch.arguments import LLM_ARGUMENTS, arguments_of
from trtllm_serve_cli.runtime.triton.model_yaml import parse_model_yaml

if TYPE_CHECKING:
    from trtllm_serve_cli.build.engine import Engine
    from trtllm_serve_cli.repository.model.model_repository import OpenRepository

# Entries that say nothing to the engine: the model answers for them, or the worker.
_OF_THE_MODEL = ("exclude_input_in_output", "cancellation_check_period_ms")


def pytorch_values(
    engine: Engine, options: ServingOptions, given: Mapping[str, str]
) -> dict[str, str]:
    """Parameter -> value, as the engine and the options ask; `given` are the user's own.

    Raises `BadInput` for what the engine was not described for.
    """
    arguments = _arguments(engine, options, given)
    _check_beams(arguments, given)
    values = values_of(LLM_ARGUMENTS, arguments) | front_ends(given)
    lora = arguments.get("lora_config", {})
    if "max_lora_rank" in lora:
        values["lora_cache_max_adapter_size"] = str(lora["max_lora_rank"])
    return values


def llm_arguments(entries: Mapping[str, str]) -> Arguments:
    """`model.yaml` of the llmapi layout, but for `triton_config`."""
    arguments = arguments_of(entries)
    first = {name: arguments.pop(name) for name in ("model", "tokenizer")}
    return {**first, "backend": "pytorch", **arguments}


def read_llm_gpus(repository: OpenRepository) -> int:
    """How many GPUs an instance takes, by its arguments as the repository has them now.

    Raises `RepositoryError`.
    """
    is_llmapi = repository.layout == "llmapi"
    where = repository.path / "tensorrt_llm" / ("1/model.yaml" if is_llmapi else "config.pbtxt")
    try:
        if is_llmapi:
            return count_gpus(parse_model_yaml(where.read_text(encoding="utf-8")))
        said = repository.value("tensorrt_llm", f"parameters.{LLM_ARGUMENTS.rest}")
        return count_gpus(arguments_of({LLM_ARGUMENTS.rest: said}))
    except (OSError, ValueError, TypeError) as error:
        raise RepositoryError(
            f"{where} does not say how many GPUs the model takes.",
            why=str(error),
            next_step=f"tllm validate {repository.target}",
        ) from error


def count_gpus(arguments: Mapping[str, Any]) -> int:
    """The world size of these arguments: each rank has a GPU."""
    kinds = ("tensor", "pipeline", "context")
    return math.prod(int(arguments.get(f"{kind}_parallel_size") or 1) for kind in kinds)


def entries_beside(entries: Mapping[str, str]) -> dict[str, str]:
    """The entries that say what no argument of `LLM` does, and so stay in `config.pbtxt`."""
    said = (*LLM_ARGUMENTS.parameters, *_OF_THE_MODEL)
    # How adapters are kept is said to the worker, too.
    return {
        name: value
        for name, value in entries.items()
        if value and (name not in said or name.startswith("lora_cache_"))
    }


def _arguments(engine: Engine, options: ServingOptions, given: Mapping[str, str]) -> Arguments:
    asked = {
        name: value
        for name in ("max_batch_size", "max_seq_len", "max_num_tokens", "max_beam_width")
        if (value := getattr(options, name)) is not None
    }
    said = merge_arguments(engine.llm_arguments or {}, asked)
    said = merge_arguments(said, json.loads(given.get(LLM_ARGUMENTS.rest) or "{}"))
    usual = {
        "model": str(engine.path),
        "tokenizer": str(engine.path),
        "max_batch_size": MAX_BATCH_SIZE,
        "max_seq_len": engine.max_position_embeddings,
        "max_num_tokens": MAX_NUM_TOKENS,
        "max_beam_width": 1,
    }
    return merge_arguments(usual, said)


def _check_beams(arguments: Arguments, given: Mapping[str, str]) -> None:
    """The width is more than a number: the engine is set up for it."""
    width = int(arguments["max_beam_width"])
    if int(given.get("max_beam_width") or width) != width:
        raise BadInput(
            f"The parameter max_beam_width cannot be {given['max_beam_width']} alone.",
            why=f"the arguments of TensorRT-LLM's LLM are for a width of {width}",
            next_step=f"say --max-beam-width {given['max_beam_width']} instead",
        )
