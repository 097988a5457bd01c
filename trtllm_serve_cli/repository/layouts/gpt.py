"""Plan the `gpt` layout, which uses the tensors from `all_models/gpt`.

The layout has the same models as the inflight layout, except `tensorrt_llm_bls`.

A response contains the prompt and the generated text for each row of the request's batch. Responses
are never streamed. Source: all_models/gpt in triton-inference-server/tensorrtllm_backend, tags
v0.5.0 to v0.19.0. In NVIDIA's repository, `tensorrt_llm` is a Python model for TensorRT-LLM's
Python runtime. In repositories rendered by tllm, the runtime package serves this model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.contract import load_contracts
from trtllm_serve_cli.repository.model.model_config import ModelConfig, QueuePolicy
from trtllm_serve_cli.repository.model.parameters import type_tensors

_CORE = "tensorrt_llm"
_TEXT = "tensorrt_llm_bls"
_MODULES = {_CORE: "gpt"}
# Maps entry names in the inflight layout to names in the gpt layout.
_RENAMED = {"gpt_model_path": "engine_dir"}
# Entries that have no effect in the gpt layout. `preprocessing` is unused, because it lacks the
# outputs that the text models need. Responses always contain the prompt and are never streamed.
# Only the tensorrt engine kind uses the batching strategy (`gpt_model_type`).
_OMITTED = (
    "accumulate_tokens",
    "ask_preprocessing",
    "preprocessing_model_name",
    "exclude_input_in_output",
    "gpt_model_type",
)


def plan_gpt(models: Iterable[ModelConfig], values: Mapping[str, str]) -> tuple[ModelConfig, ...]:
    """Return `models` converted from the inflight layout to the gpt layout.

    Raise `BadInput` if `values` configures more than one engine.
    """
    _check_single_engine(values)
    return tuple(_convert(each, values) for each in models if each.name != _TEXT)


def _convert(model: ModelConfig, values: Mapping[str, str]) -> ModelConfig:
    is_text = model.module == "text"
    contract = type_tensors(
        _TEXT if is_text else model.name,
        load_contracts()["gpt/ensemble" if is_text else f"gpt/{model.name}"],
        values,
        "gpt",
    )
    entries = {
        _RENAMED.get(name, name): value
        for name, value in model.parameters.items()
        if name not in _OMITTED
    }
    return replace(
        model,
        module=_MODULES.get(model.name, model.module),
        inputs=contract.inputs,
        outputs=contract.outputs,
        parameters=entries,
        is_decoupled=False,
        is_batched=False,
        max_queue_delay_microseconds=0,
        queue=QueuePolicy(),
    )


def _check_single_engine(values: Mapping[str, str]) -> None:
    """Raise `BadInput` if `values` configures more than one engine.

    The layout requires a single engine, because each text model connects directly to one engine
    worker.
    """
    count = int(values["tensorrt_llm_instance_count"])
    if count > 1 and values.get("instances_share_engine") != "true":
        raise BadInput(
            f"The gpt layout cannot serve {count} engines.",
            why="the models in this layout can connect to only one engine",
            next_step="set instances_share_engine=true to run all instances with one engine, or "
            "choose --layout inflight",
        )
