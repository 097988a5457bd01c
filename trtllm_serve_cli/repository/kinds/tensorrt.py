"""The engine's model for Triton's C++ backend, which upstream calls `tensorrtllm`.

Its `config.pbtxt` has every parameter of upstream's newest one. What nothing was asked for is an
empty string: in every version of the backend that counts as not set, and those from 0.19 on do not
load without the keys `gpt_model_type`, `tokenizer_dir`, `guided_decoding_backend` and
`xgrammar_tokenizer_info_path`. Source: `model_instance_state.cc` of
triton-inference-server/tensorrtllm_backend, where a value that does not convert is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trtllm_serve_cli.build.engine import TOKENIZER_FOLDER
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.contract import load_contracts
from trtllm_serve_cli.repository.model.model_config import ModelConfig, ServingOptions
from trtllm_serve_cli.repository.model.parameters import load_parameters, type_tensors

if TYPE_CHECKING:
    from trtllm_serve_cli.build.engine import Engine
    from trtllm_serve_cli.build.tensorrt_engine import TensorRtBuild

# What upstream fixes.
_FIXED = {
    "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
    "executor_worker_path": "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker",
}
_TYPES = {"float32": "TYPE_FP32", "float16": "TYPE_FP16", "bfloat16": "TYPE_BF16"}


def tensorrt_values(engine: Engine, options: ServingOptions) -> dict[str, str]:
    """Parameter -> value, as the engine was built and the options ask.

    Raises `BadInput` for what the engine was not built for.
    """
    built = engine.tensorrt
    assert built is not None
    _check_decided_at_build(options)
    batch_size = options.max_batch_size or built.max_batch_size
    beam_width = options.max_beam_width or built.max_beam_width
    _check_within("--max-batch-size", batch_size, built.max_batch_size)
    _check_within("--max-beam-width", beam_width, built.max_beam_width)
    return {
        "triton_max_batch_size": str(batch_size),
        "max_beam_width": str(beam_width),
        "max_seq_len": str(built.max_seq_len),
        "tokenizer_dir": str(engine.path / TOKENIZER_FOLDER),
        "engine_dir": str(engine.path),
        "logits_datatype": _tensor_type(built.logits_dtype),
        "prompt_embedding_table_data_type": _tensor_type(built.dtype),
    }


def plan_tensorrt_llm(
    engine: Engine, values: Mapping[str, str], batching: Mapping[str, Any]
) -> ModelConfig:
    """The model `tensorrt_llm`; `batching` are ModelConfig's fields on batches and the queue."""
    built = engine.tensorrt
    assert built is not None
    _check_servable(built, values)
    contract = type_tensors("tensorrt_llm", load_contracts()["tensorrt_llm"], values)
    return ModelConfig(
        name="tensorrt_llm",
        title=f"the engine of {engine.model_name} (tensorrt)",
        module=None,
        backend=values["triton_backend"],
        inputs=contract.inputs,
        outputs=contract.outputs,
        parameters=_parameters(values),
        instance_count=int(values["tensorrt_llm_instance_count"]),
        is_decoupled=values["decoupled_mode"] == "true",
        **batching,
    )


def _parameters(values: Mapping[str, str]) -> dict[str, str]:
    """Every key of upstream's `config.pbtxt`; empty where there is nothing to say."""
    parameters = {
        place.removeprefix("parameters."): values.get(each.name, "")
        for each in load_parameters().values()
        if "tensorrt" in each.engines and not each.is_fact
        for place in each.fills.get("tensorrt_llm", ())
        if place.startswith("parameters.")
    }
    return parameters | _FIXED


def _check_servable(built: TensorRtBuild, values: Mapping[str, str]) -> None:
    if values["triton_backend"] != "tensorrtllm":
        raise BadInput(
            f"triton_backend={values['triton_backend']} cannot be rendered.",
            why="its code is upstream's, and comes with upstream's own repository",
            next_step="leave it out: the C++ backend serves the same engine",
        )
    _check_within("max_beam_width", int(values["max_beam_width"] or 1), built.max_beam_width)


def _check_decided_at_build(options: ServingOptions) -> None:
    for name in ("max_seq_len", "max_num_tokens"):
        if getattr(options, name) is not None:
            option = "--" + name.replace("_", "-")
            raise BadInput(
                f"{option} has no effect on an engine that is built.",
                why="trtllm-build has fixed it",
                next_step="leave it out, or build the engine again",
            )


def _check_within(name: str, value: int, limit: int) -> None:
    if value > limit:
        raise BadInput(
            f"{name} {value} is beyond the engine.",
            why=f"it was built for at most {limit}",
            next_step=f"ask for at most {limit}, or build the engine again",
        )


def _tensor_type(dtype: str) -> str:
    return _TYPES.get(dtype, "TYPE_FP16")
