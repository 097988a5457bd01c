"""The model in the vllm layout, which generates text for one prompt per request.

Triton's vLLM backend serves models of the vllm engine kind. This model serves the other Python
engine kinds with the same inputs and outputs. The engine's arguments are in `model.json`, next to
`model.py`. Source: src/utils/request.py in triton-inference-server/vllm_backend@8de0c14.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from ..engine import InvalidRequest
from ..engines.capabilities import EMBEDDING_BIAS, MIN_P
from ..engines.kinds import find_kind
from ..models import tensorrt_llm
from ..requests.request_record import RequestRecord
from ..requests.responses import ResponseBuilder
from ..requests.vllm_response import Outputs, TextRequest, TextResponseBuilder
from ..text.text_limits import check_prompt_lengths, check_word_lengths
from ..text.tokenizer import load_tokenizer
from ..triton.model_json import as_parameters
from ..triton.parameters import Parameters
from ..triton.sampling_parameters import SamplingParameters, parse_sampling_parameters
from ..triton.tensors import Array, GetTensor, as_text

_SAMPLING = "sampling_parameters"
_OUTPUTS = Outputs.__slots__
# Maps each sampling parameter that only some engine kinds support to the feature it requires.
_FEATURES = {"min_p": MIN_P, "logit_bias": EMBEDDING_BIAS}
_SUPPORTED_INPUTS = frozenset(
    (
        "text_input",
        "stream",
        "exclude_input_in_output",
        _SAMPLING,
        *(f"return_{name}" for name in _OUTPUTS),
    )
)


class TritonPythonModel(tensorrt_llm.TritonPythonModel):
    """The model that Triton's Python backend loads and calls."""

    stream_input = "stream"

    def initialize(self, args: dict[str, str]) -> None:
        parameters = Parameters(args)
        parameters.add(_read_model_json(args))
        parameters.max_queue_size = parameters.number("max_queue_size", 0, at_least=0)
        self._tokenizer = load_tokenizer(Path(parameters.text("tokenizer_dir")))
        self._adds_special_tokens = parameters.flag("add_special_tokens", True)
        self._start(parameters, _SUPPORTED_INPUTS)

    def _start_request(
        self, request: Any, sender: Any, get: GetTensor, record: RequestRecord | None
    ) -> None:
        images = get("image")
        if images is not None and images.size:
            raise InvalidRequest(
                f"the {self._engine_kind} engine kind does not support the image input; omit the "
                "input, or serve a multimodal model with the vllm engine kind"
            )
        # Like Triton's vLLM backend, read sampling parameters from the request parameters if the
        # input is missing.
        get = partial(_get_or_parameters, get, request.parameters())
        super()._start_request(request, sender, get, record)

    def _parse(self, get: GetTensor, is_streaming: bool) -> list[TextRequest]:
        prompt = _read_text(get, "text_input")
        if not prompt:
            raise InvalidRequest("text_input is empty; send a prompt")
        sampling = parse_sampling_parameters(_read_text(get, _SAMPLING))
        self._check_supported(sampling)
        excludes = get("exclude_input_in_output")
        includes_prompt = not is_streaming if excludes is None else not np.any(excludes)
        if includes_prompt and is_streaming:
            raise InvalidRequest(
                "exclude_input_in_output is false, but a streamed response cannot contain the "
                "prompt; omit exclude_input_in_output, or omit stream"
            )
        outputs = Outputs(**{name: _is_set(get(f"return_{name}")) for name in _OUTPUTS})
        return [
            TextRequest(
                fields=self._generation_fields(prompt, sampling, outputs),
                prompt=prompt if includes_prompt else "",
                stops=sampling.stops,
                keeps_stop_word=sampling.keeps_stop_word,
                skips_special_tokens=sampling.skips_special_tokens,
                has_log_probs=sampling.has_log_probs,
                outputs=outputs,
            )
        ]

    def _check_supported(self, sampling: SamplingParameters) -> None:
        """Raise `InvalidRequest` if the engine kind does not support a sampling parameter.

        Check only the parameters in `_FEATURES`.
        """
        unsupported = find_kind(self._engine_kind).capabilities.unsupported
        for field, feature in _FEATURES.items():
            if sampling.fields.get(field) and (why := unsupported.get(feature)):
                raise InvalidRequest(
                    f"sampling_parameters contains {field}, which the {self._engine_kind} engine "
                    f"kind does not support, because {why}; omit {field}"
                )

    def _new_response_builder(
        self, row: TextRequest, *, arrival_time_ns: int, is_streaming: bool
    ) -> ResponseBuilder:
        decode = partial(self._decode, skip_special_tokens=row.skips_special_tokens)
        return TextResponseBuilder(row, decode, is_streaming=is_streaming)

    def _generation_fields(
        self, prompt: str, sampling: SamplingParameters, outputs: Outputs
    ) -> dict[str, Any]:
        """Return the fields of the `GenerationRequest`.

        Raise `InvalidRequest` if the prompt or a word list is too long.
        """
        encode = self._tokenizer.encode
        max_seq_len = self._worker.limits.max_seq_len
        check_prompt_lengths("text_input", [prompt], max_seq_len)
        check_word_lengths("stop", [sampling.stops])
        check_word_lengths("bad_words", [sampling.bad_words])
        input_ids = encode(prompt, add_special_tokens=self._adds_special_tokens)
        # If `max_tokens` is null, generate up to the model's maximum sequence length.
        room = max(1, max_seq_len - len(input_ids))
        return {
            "max_new_tokens": room,
            **sampling.fields,
            "input_ids": tuple(input_ids),
            "end_id": None if sampling.ignores_end else self._tokenizer.end_id,
            "stop_words": (
                *(tuple(encode(word, add_special_tokens=False)) for word in sampling.stops),
                *((token,) for token in sampling.stop_token_ids),
            ),
            "bad_words": tuple(
                tuple(encode(word, add_special_tokens=False)) for word in sampling.bad_words
            ),
            "return_log_probs": sampling.has_log_probs or outputs.cumulative_logprob,
        }

    def _decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)


def _read_model_json(args: dict[str, str]) -> dict[str, str]:
    path = Path(args["model_repository"], args["model_version"], "model.json")
    try:
        arguments = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(arguments, dict):
            raise ValueError("the file does not contain a JSON object")
        return as_parameters(arguments)
    except (OSError, ValueError) as error:
        raise pb_utils.TritonModelException(f"{path} cannot be read: {error}") from error


def _get_or_parameters(get: GetTensor, parameters: str, name: str) -> Array | None:
    tensor = get(name)
    if tensor is None and name == _SAMPLING:
        return np.array([parameters.encode()], dtype=object)
    return tensor


def _read_text(get: GetTensor, name: str) -> str:
    tensor = get(name)
    if tensor is None or tensor.size != 1:
        raise InvalidRequest(f"{name} must contain exactly one string; send one string")
    return as_text(tensor.reshape(-1)[0], name)


def _is_set(tensor: Array | None) -> bool:
    return tensor is not None and bool(np.any(tensor))
