"""The `tensorrt_llm` model in the llmapi layout, which generates text for one prompt per request.

Unlike in the `inflight` layout, the inputs have no batch dimension, and most of them are named
`sampling_param_*` or `return_*`. The engine's arguments are in `model.yaml`, next to `model.py`.
Source of the names: triton_backend/all_models/llmapi/tensorrt_llm in
NVIDIA/TensorRT-LLM@c8c6df08 (1.2), @0a710573 and @0df60f9a (1.3).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from ..engine import InvalidRequest
from ..engines.capabilities import LOGITS_PROCESSORS, LORA, UPSTREAM_ONLY
from ..engines.kinds import RuntimeKind, find_kind
from ..log import write_log
from ..models import tensorrt_llm
from ..requests.llmapi_response import TextRequest, TextResponseBuilder
from ..requests.responses import ResponseBuilder
from ..text.text_limits import check_prompt_lengths, check_word_lengths
from ..text.tokenizer import load_tokenizer
from ..triton.model_yaml import as_parameters, parse_model_yaml
from ..triton.parameters import Parameters
from ..triton.tensors import GetTensor, as_text

# Maps each scalar tensor to its `GenerationRequest` field and the value's type.
_SCALARS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "sampling_param_max_tokens": ("max_new_tokens", int),
    "sampling_param_best_of": ("num_return_sequences", int),
    "sampling_param_temperature": ("temperature", float),
    "sampling_param_top_k": ("top_k", int),
    "sampling_param_top_p": ("top_p", float),
    "sampling_param_seed": ("seed", int),
    "sampling_param_frequency_penalty": ("frequency_penalty", float),
    "sampling_param_presence_penalty": ("presence_penalty", float),
    "sampling_param_return_perf_metrics": ("return_perf_metrics", bool),
}
_FLAGS = (
    "sampling_param_exclude_input_from_output",
    "return_finish_reason",
    "return_stop_reason",
    "return_cumulative_logprob",
)
_LORA_NAME = "lora_name"
_SUPPORTED_INPUTS = frozenset(
    (*_SCALARS, *_FLAGS, "text_input", "streaming", "stop", "sampling_param_stop", _LORA_NAME)
)
# The `model.yaml` section for logits post-processors. Only NVIDIA's model supports this section,
# which is not an argument of `LLM`.
_PROCESSORS = "logits_post_processors"
# The default `max_tokens` of TensorRT-LLM's `SamplingParams`.
_MAX_TOKENS = 32


class TritonPythonModel(tensorrt_llm.TritonPythonModel):
    """The model that Triton's Python backend loads and calls."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = Parameters(args)
        arguments = _drop_processors(_read_model_yaml(args))
        kind = _find_kind(parameters, arguments)
        read_model_yaml = kind.read_model_yaml
        engine_arguments = (read_model_yaml or as_parameters)(arguments)
        parameters.add(engine_arguments)
        _apply_triton_config(parameters, arguments)
        self._tokenizer = load_tokenizer(Path(parameters.text("tokenizer_dir")))
        self._adds_special_tokens = parameters.flag("add_special_tokens", True)
        self._skips_special_tokens = parameters.flag("skip_special_tokens", True)
        has_adapters = LORA not in kind.capabilities.unsupported
        self._start(parameters, _SUPPORTED_INPUTS - (set() if has_adapters else {_LORA_NAME}))
        if read_model_yaml is None and (unknown := parameters.find_unread(engine_arguments)):
            self.finalize()
            raise pb_utils.TritonModelException(
                f"model.yaml contains the unknown argument {unknown[0]}; remove the argument"
            )

    def _parse(self, get: GetTensor, is_streaming: bool) -> Sequence[TextRequest]:
        request = self._text_request(get)
        if is_streaming and request.fields["num_return_sequences"] > 1:
            raise InvalidRequest(
                "a response with sampling_param_best_of above 1 cannot be streamed, because the "
                "best sequence is known only at the end; omit streaming, or set "
                "sampling_param_best_of to 1"
            )
        return [request]

    def _new_response_builder(
        self, row: TextRequest, *, arrival_time_ns: int, is_streaming: bool
    ) -> ResponseBuilder:
        return TextResponseBuilder(row, self._decode, arrival_time_ns, is_streaming=is_streaming)

    def _text_request(self, get: GetTensor) -> TextRequest:
        prompt = _strings(get, "text_input")
        if len(prompt) != 1 or not prompt[0]:
            raise InvalidRequest(
                "text_input must contain exactly one non-empty prompt; send one prompt per request"
            )
        check_prompt_lengths("text_input", prompt, self._worker.limits.max_seq_len)
        stops = tuple(each for each in _strings(get, "sampling_param_stop") if each)
        check_word_lengths("sampling_param_stop", [stops])
        flags = {name: bool(_scalar(get, name)) for name in _FLAGS}
        fields: dict[str, Any] = {"max_new_tokens": _MAX_TOKENS, "num_return_sequences": 1}
        for name, (field, cast) in _SCALARS.items():
            if (value := _scalar(get, name)) is not None:
                fields[field] = cast(value)
        if name := "".join(_strings(get, _LORA_NAME)):
            fields["lora_name"] = name
        fields |= {
            "input_ids": tuple(
                self._tokenizer.encode(prompt[0], add_special_tokens=self._adds_special_tokens)
            ),
            "end_id": self._tokenizer.end_id,
            "stop_words": tuple(
                tuple(self._tokenizer.encode(each, add_special_tokens=False)) for each in stops
            ),
            "return_log_probs": flags["return_cumulative_logprob"]
            or fields["num_return_sequences"] > 1,
        }
        return TextRequest(
            fields=fields,
            stops=stops,
            exclude_input=flags["sampling_param_exclude_input_from_output"],
            returns_finish_reason=flags["return_finish_reason"],
            returns_stop_reason=flags["return_stop_reason"],
            returns_log_prob=flags["return_cumulative_logprob"],
        )

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skips_special_tokens)


def _read_model_yaml(args: dict[str, str]) -> dict[str, Any]:
    # Like NVIDIA's model, read the name of the configuration file from this environment variable.
    name = os.environ.get("LLM_CONFIG_PATH", "model.yaml")
    path = Path(args["model_repository"], args["model_version"], name)
    try:
        return parse_model_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise pb_utils.TritonModelException(f"{path} cannot be read: {error}") from error


def _drop_processors(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return `arguments` without logits post-processors, and log a warning if any are set."""
    kept = {
        name: value for name, value in arguments.items() if name.partition(".")[0] != _PROCESSORS
    }
    if len(kept) < len(arguments):
        why = UPSTREAM_ONLY[LOGITS_PROCESSORS]
        write_log("W", f"model.yaml: {_PROCESSORS} is ignored, because {why}")
    return kept


def _find_kind(parameters: Parameters, arguments: dict[str, Any]) -> RuntimeKind:
    name = parameters.text("engine_kind", "") or str(arguments.get("backend", ""))
    try:
        return find_kind(name)
    except ValueError as error:
        raise pb_utils.TritonModelException(f"the model cannot be served: {error}") from error


def _apply_triton_config(parameters: Parameters, arguments: dict[str, Any]) -> None:
    """Apply the arguments in `triton_config` to `parameters`.

    Raise `TritonModelException` if `decoupled` contradicts `config.pbtxt`, or if `multimodal` is
    set. Raise `ValueError` if `max_queue_size` is not a non-negative integer.
    """
    if arguments.get("triton_config.multimodal"):
        raise pb_utils.TritonModelException(
            "model.yaml sets triton_config.multimodal, but only text models are supported; remove "
            "triton_config.multimodal"
        )
    if bool(arguments.get("triton_config.decoupled", False)) is not parameters.is_decoupled:
        raise pb_utils.TritonModelException(
            "model.yaml and config.pbtxt disagree on whether the model is decoupled; set the same "
            "value in both files"
        )
    for name in ("cancellation_check_period_ms", "max_queue_size"):
        if (value := arguments.get(f"triton_config.{name}")) is not None:
            parameters.add({name: str(value)})
    parameters.max_queue_size = parameters.number("max_queue_size", 0, at_least=0)


def _strings(get: GetTensor, name: str) -> list[str]:
    tensor = get(name)
    return [] if tensor is None else [as_text(each, name) for each in tensor.reshape(-1)]


def _scalar(get: GetTensor, name: str) -> Any:
    tensor = get(name)
    if tensor is None:
        return None
    if np.size(tensor) != 1:
        raise InvalidRequest(f"{name} has shape {list(tensor.shape)}; send one value")
    return tensor.reshape(-1)[0]
