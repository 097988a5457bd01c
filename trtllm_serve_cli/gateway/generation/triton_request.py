"""Build requests to the `tensorrt_llm` model or the embedding model of a Triton server."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from trtllm_serve_cli.client.llmapi import name_inflight_inputs
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.gateway.errors import ApiError, invalid
from trtllm_serve_cli.gateway.generation.adapter_task import Inputs
from trtllm_serve_cli.runtime.lora.adapter_request import NAME_PARAMETER
from trtllm_serve_cli.runtime.triton.core_inputs import EXCLUDE_INPUT
from trtllm_serve_cli.runtime.triton.tensors import BIAS
from trtllm_serve_cli.runtime.triton.word_lists import encode_words

# Maps scalar fields of `GenerationRequest` to the names and types of the `tensorrt_llm` inputs.
_SCALARS: Mapping[str, tuple[str, str]] = {
    "max_new_tokens": ("request_output_len", "INT32"),
    "end_id": ("end_id", "INT32"),
    "num_return_sequences": ("num_return_sequences", "INT32"),
    "temperature": ("temperature", "FP32"),
    "top_k": ("runtime_top_k", "INT32"),
    "top_p": ("runtime_top_p", "FP32"),
    "seed": ("seed", "UINT64"),
    "repetition_penalty": ("repetition_penalty", "FP32"),
    "presence_penalty": ("presence_penalty", "FP32"),
    "frequency_penalty": ("frequency_penalty", "FP32"),
    "min_tokens": ("min_tokens", "INT32"),
    "return_log_probs": ("return_log_probs", "BOOL"),
    "guide_type": ("guided_decoding_guide_type", "BYTES"),
    "guide": ("guided_decoding_guide", "BYTES"),
}
# Maps fields that have no Triton input to their descriptions in error messages.
_WITHOUT_INPUT = {
    "min_p": "Requests with `min_p`",
    "num_top_log_probs": "Top log probabilities (`top_logprobs`, or `logprobs` greater than 0)",
    "return_prompt_log_probs": "Prompt log probabilities (`echo` with `logprobs`)",
}
_WORD_LISTS = {"stop_words": "stop_words_list", "bad_words": "bad_words_list"}
_FORMATS = {"INT32": "<i", "UINT64": "<Q", "FP32": "<f", "BOOL": "<?"}
# Maps fields to their default values. Inputs with default values are omitted.
_WITHOUT_EFFECT = {"num_return_sequences": 1, "return_log_probs": False}


def plan_message(
    core: ModelInfo, fields: Mapping[str, Any], *, pad_id: int, vocab_size: int
) -> Any:
    """Return the `ModelInferRequest` for the fields of a `GenerationRequest`.

    Raise `ApiError` (400) if the request requires an input that the model does not have, or sets a
    field that only engine workers support.
    """
    values: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    ids = np.array([fields["input_ids"]], dtype=np.int32)
    values["input_ids"] = ("INT32", ids.shape, ids.tobytes())
    values["input_lengths"] = _scalar("INT32", ids.shape[1])
    values["pad_id"] = _scalar("INT32", pad_id)
    values["streaming"] = _scalar("BOOL", core.is_decoupled)
    values[EXCLUDE_INPUT] = _scalar("BOOL", True)
    for field, (name, datatype) in _SCALARS.items():
        value = fields.get(field)
        if value is not None and value != _WITHOUT_EFFECT.get(field, ...):
            values[name] = _scalar(datatype, value)
    for field, name in _WORD_LISTS.items():
        if words := fields.get(field):
            array = encode_words([[list(word) for word in words]])
            values[name] = ("INT32", array.shape, array.tobytes())
    if bias := fields.get("logit_bias"):
        array = np.zeros((1, vocab_size), dtype=np.float32)
        for token, value in bias:
            array[0, token] = value
        values[BIAS] = ("FP32", array.shape, array.tobytes())
    for field, what in _WITHOUT_INPUT.items():
        if fields.get(field):
            raise invalid(
                f"{what} require an engine worker that is connected to the gateway. Omit the "
                "parameter, or ask the operator to start the server and its gateway with "
                "`tllm start`.",
                code="unsupported_parameter",
            )
    try:
        names = name_inflight_inputs(
            core.name, _required(values, core), core.inputs, core.tensorrt_llm_version
        )
    except BadInput as error:
        raise _unsupported(error) from error
    message = service_pb2.ModelInferRequest(model_name=core.name)
    if fields.get("lora_name") and not fields.get("lora_file"):
        # The server loaded the adapter under this name at startup.
        message.parameters[NAME_PARAMETER].string_param = fields["lora_name"]
    return extend_message(message, {served: values[name] for name, served in names.items()})


def plan_stop(core: ModelInfo, request_id: str) -> Any:
    """Return the `ModelInferRequest` that stops the request with this id."""
    # TensorRT-LLM 0.14 and earlier require these inputs even in a stop request.
    names = ("input_ids", "input_lengths", "request_output_len")
    values = {each: _scalar("INT32", 0) for each in names}
    values["stop"] = _scalar("BOOL", True)
    served = name_inflight_inputs(core.name, values, core.inputs, core.tensorrt_llm_version)
    message = service_pb2.ModelInferRequest(model_name=core.name, id=request_id)
    return extend_message(message, {name: values[each] for each, name in served.items()})


def extend_message(message: Any, inputs: Inputs) -> Any:
    """Return a copy of a `ModelInferRequest` with additional `inputs`.

    If `inputs` is empty, return `message` itself.
    """
    if not inputs:
        return message
    extended = service_pb2.ModelInferRequest()
    extended.CopyFrom(message)
    for name, (datatype, shape, content) in inputs.items():
        extended.inputs.add(name=name, datatype=datatype, shape=shape)
        extended.raw_input_contents.append(content)
    return extended


def _required(values: Mapping[str, Any], core: ModelInfo) -> list[str]:
    """Return the names of the inputs to send.

    Omit inputs that the model does not have, if the request also works without them.
    """
    dispensable = ("streaming", "pad_id", EXCLUDE_INPUT)
    return [name for name in values if name in core.inputs or name not in dispensable]


def _unsupported(error: BadInput) -> ApiError:
    what = error.what.removesuffix(".")
    message = f"{what}, because {error.why}; {error.next_step}."
    return invalid(message, code="unsupported_parameter")


def _scalar(datatype: str, value: Any) -> tuple[str, tuple[int, ...], bytes]:
    if datatype == "BYTES":
        data = str(value).encode()
        return datatype, (1, 1), struct.pack("<I", len(data)) + data
    return datatype, (1, 1), struct.pack(_FORMATS[datatype], value)


def plan_embedding(model: str, fields: Mapping[str, Any]) -> Any:
    """Return the `ModelInferRequest` that computes the embedding of a prompt."""
    ids = np.array([fields["input_ids"]], dtype=np.int32)
    message = service_pb2.ModelInferRequest(model_name=model)
    message.inputs.add(name="input_ids", datatype="INT32", shape=ids.shape)
    message.raw_input_contents.append(ids.tobytes())
    return message
