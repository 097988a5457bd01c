"""Generate responses with draft-model speculative decoding, for requests with `num_draft_tokens`.

In each step, the draft model generates a few tokens. The target model, which is `tensorrt_llm`,
checks these draft tokens in one engine step. It accepts the draft tokens up to the first one that
it would not generate itself, and adds one token. The next step continues after these tokens.

As in NVIDIA's `tensorrt_llm_bls`, a request with draft tokens has one prompt and one sequence. The
response is not streamed and does not contain logits. Source:
all_models/inflight_batcher_llm/tensorrt_llm_bls/1/lib (decode.py, triton_decoder.py) in
triton-inference-server/tensorrtllm_backend v0.9.0 to v0.19.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..engine import PERF_OUTPUTS, InvalidRequest
from ..triton.core_inputs import EXCLUDE_INPUT
from ..triton.tensors import Array
from ..triton.word_lists import decode_words, find_word_end

DRAFT_INPUTS = ("num_draft_tokens", "use_draft_logits")
# A function that sends a request to a model and returns the outputs without the prompt. The
# result is {} if the model returns no outputs, for example because the request was cancelled.
Ask = Callable[[dict[str, Array]], dict[str, Array]]

# Inputs that are not forwarded to the models. Streaming and logits are not supported with draft
# tokens, and `_Response` adds the token counts.
_NEVER_FORWARDED = frozenset(
    (
        "streaming",
        "return_context_logits",
        "return_generation_logits",
        "return_num_input_tokens",
        "return_num_output_tokens",
    )
)
# Inputs that only the target model receives. LoRA adapters fit only the target model, and optional
# outputs come only from the target model's responses.
_NOT_FOR_DRAFT_MODEL = frozenset(
    (
        "lora_config",
        "lora_task_id",
        "lora_weights",
        "return_kv_cache_reuse_stats",
        "return_log_probs",
        "return_perf_metrics",
    )
)
# Maps each input to its maximum value in a request with draft tokens.
_LIMITS = {
    "streaming": 0,
    "beam_width": 1,
    "num_return_sequences": 1,
    "return_context_logits": 0,
    "return_generation_logits": 0,
}
# Inputs that a request with draft tokens must not contain. A guide applies to the whole response,
# but each step generates only a part of it. An embedding table applies to the whole prompt, but the
# prompt of each step also contains the tokens generated so far.
_REJECTED = ("guided_decoding_guide", "guided_decoding_guide_type", "prompt_embedding_table")
_NAMES = {"streaming": "stream"}
_FIRST_STEP = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns")
_LAST_STEP = ("last_token_time_ns",)
_DRAFTED, _ACCEPTED = "total_draft_tokens", "total_accepted_draft_tokens"


def requests_drafts(get: Callable[[str], Array | None]) -> bool:
    """Return whether a request sets a positive number of draft tokens."""
    tensor = get("num_draft_tokens")
    return tensor is not None and bool(np.any(tensor > 0))


@dataclass(frozen=True, slots=True)
class Drafts:
    """The tokens that the draft model generated in one step.

    If the request uses draft logits, `logits` has the shape [tokens, vocabulary]. Otherwise,
    `logits` is None.
    """

    token_ids: list[int] = field(default_factory=list)
    logits: Array | None = None


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A request with draft tokens.

    - `inputs`: the inputs for `tensorrt_llm`, with the input names of the installed TensorRT-LLM
      version.
    - `num_draft_tokens`: the number of draft tokens per step.
    - `uses_logits`: true if the target model receives the draft model's logits.
    - `min_tokens_name`: the name of the `min_tokens` input in the installed TensorRT-LLM version.
    - `excludes_input`: true if the response omits the prompt.
    """

    inputs: Mapping[str, Array]
    num_draft_tokens: int
    uses_logits: bool
    min_tokens_name: str
    excludes_input: bool

    @classmethod
    def of(
        cls,
        inputs: Mapping[str, Array],
        columns: Mapping[str, Array],
        *,
        min_tokens_name: str,
        excludes_input: bool,
    ) -> DraftRequest:
        """Create a request from a text model's inputs.

        `columns` contains the text model's inputs. `inputs` contains the inputs encoded for
        `tensorrt_llm`. Raise `InvalidRequest` if the request cannot be combined with draft tokens.
        """
        _check(inputs)
        if EXCLUDE_INPUT in inputs:
            excludes_input = bool(np.any(inputs[EXCLUDE_INPUT]))
        return cls(
            inputs,
            int(np.max(columns["num_draft_tokens"])),
            bool(np.any(columns.get("use_draft_logits", False))),
            min_tokens_name,
            excludes_input,
        )

    @property
    def prompt(self) -> list[int]:
        """The token ids of the prompt."""
        return _ids(self.inputs["input_ids"][0, : int(self.inputs["input_lengths"].flat[0])])

    @property
    def max_tokens(self) -> int:
        """The maximum number of tokens to generate."""
        return self._number("request_output_len", 0)

    @property
    def end_id(self) -> int | None:
        """The id of the token that ends a response, or None if the request does not set one."""
        return self._number("end_id", -1) if "end_id" in self.inputs else None

    def has(self, name: str) -> bool:
        """Return whether the request sets the flag `name`."""
        return bool(np.any(self.inputs.get(name, False)))

    def draft_inputs(self, tokens: list[int], count: int) -> dict[str, Array]:
        """Return the draft model's inputs for generating `count` tokens after `tokens`.

        As in NVIDIA's `tensorrt_llm_bls`, the minimum number of tokens is also `count`, so that the
        draft model cannot end the response.
        """
        inputs = self._continued(tokens, count, min_tokens=count)
        inputs = {name: array for name, array in inputs.items() if name not in _NOT_FOR_DRAFT_MODEL}
        if self.uses_logits:
            inputs["return_generation_logits"] = np.array([[True]])
        return inputs

    def target_inputs(self, tokens: list[int], drafts: Drafts) -> dict[str, Array]:
        """Return the target model's inputs for checking `drafts` after `tokens`."""
        num_left = self._number(self.min_tokens_name, 0) - len(tokens)
        count = len(drafts.token_ids) + 1
        inputs = self._continued(tokens, count, min_tokens=min(max(num_left, 0), count))
        if drafts.token_ids:
            inputs["draft_input_ids"] = np.array([drafts.token_ids], dtype=np.int32)
        if drafts.token_ids and drafts.logits is not None:
            inputs["draft_logits"] = drafts.logits[np.newaxis]
        return inputs

    def _continued(self, tokens: list[int], count: int, *, min_tokens: int) -> dict[str, Array]:
        ids = [*self.prompt, *tokens]
        inputs = {
            name: array for name, array in self.inputs.items() if name not in _NEVER_FORWARDED
        }
        inputs.pop(self.min_tokens_name, None)
        if min_tokens:
            inputs[self.min_tokens_name] = _number(min_tokens)
        return inputs | {
            "input_ids": np.array([ids], dtype=np.int32),
            "input_lengths": _number(len(ids)),
            "request_output_len": _number(count),
            EXCLUDE_INPUT: np.array([[True]]),
        }

    def _number(self, name: str, default: int) -> int:
        return int(self.inputs[name].flat[0]) if name in self.inputs else default


def generate_with_drafts(
    request: DraftRequest, ask_draft: Ask, ask_target: Ask, is_cancelled: Callable[[], bool]
) -> dict[str, Array]:
    """Generate the whole response and return its outputs.

    `is_cancelled` is called before each step and returns whether the client has cancelled the
    request. After a cancellation, the response contains only the tokens generated so far. Raise
    `InvalidRequest` if the request uses draft logits, but the draft model returns none.
    """
    response = _Response(request)
    while not response.has_ended and not is_cancelled():
        drafts = _ask_for_drafts(request, response.tokens, ask_draft)
        response.add(ask_target(request.target_inputs(response.tokens, drafts)), drafts)
    return response.build()


def _ask_for_drafts(request: DraftRequest, tokens: list[int], ask_draft: Ask) -> Drafts:
    # The target model adds one token to the draft tokens, so request one fewer draft token.
    count = min(request.num_draft_tokens, request.max_tokens - len(tokens) - 1)
    if count <= 0:
        return Drafts()
    outputs = ask_draft(request.draft_inputs(tokens, count))
    token_ids = _new_tokens(outputs)
    if not request.uses_logits or not token_ids:
        return Drafts(token_ids)
    if "generation_logits" not in outputs:
        raise InvalidRequest(
            "use_draft_logits requires logits, but the draft model's response contains none; omit "
            "use_draft_logits, or build the draft engine with gather_generation_logits=true"
        )
    return Drafts(token_ids, outputs["generation_logits"][0, 0, -len(token_ids) :])


class _Response:
    """An incomplete response, with its tokens and the target model's outputs for each step."""

    def __init__(self, request: DraftRequest) -> None:
        self.tokens: list[int] = []
        self.has_ended = False
        self._request = request
        words = request.inputs.get("stop_words_list")
        self._stop_words = decode_words(words[0]) if words is not None else ()
        self._steps: list[dict[str, Array]] = []

    def add(self, outputs: dict[str, Array], drafts: Drafts) -> None:
        """Add the outputs of one step, in which the target model checked `drafts`."""
        start, new = len(self.tokens), _new_tokens(outputs)
        self._steps.append(outputs)
        self.tokens += new
        word_end = find_word_end(self.tokens, start, self._stop_words)
        if word_end is not None:
            del self.tokens[word_end:]
        # If the target model adds no token to the draft tokens, it has generated the end id, which
        # the backend does not return.
        self.has_ended = (
            word_end is not None
            or not new
            or new == drafts.token_ids
            or new[-1] == self._request.end_id
            or len(self.tokens) >= self._request.max_tokens
        )

    def build(self) -> dict[str, Array]:
        """Return the outputs of the response."""
        request, tokens = self._request, self.tokens
        ids = tokens if request.excludes_input else [*request.prompt, *tokens]
        outputs = {
            "output_ids": np.array([[ids]], dtype=np.int32),
            "sequence_length": _number(len(ids)),
            "batch_index": _number(0),
            "sequence_index": _number(0),
        }
        if request.has("return_log_probs"):
            outputs |= self._log_probs()
        if request.has("return_num_input_tokens"):
            outputs["num_input_tokens"] = _number(len(request.prompt))
        if request.has("return_num_output_tokens"):
            outputs["num_output_tokens"] = _number(len(tokens))
        return outputs | self._perf()

    def _log_probs(self) -> dict[str, Array]:
        steps = [each for each in self._steps if "output_log_probs" in each]
        if not steps:
            return {}
        log_probs = np.concatenate([each["output_log_probs"] for each in steps], axis=2)
        return {
            "output_log_probs": log_probs[..., : len(self.tokens)],
            "cum_log_probs": np.sum([each["cum_log_probs"] for each in steps], axis=0),
        }

    def _perf(self) -> dict[str, Array]:
        """Return the performance metrics of all steps.

        Times are from the first or the last step. Counts are summed, and the acceptance rate covers
        all draft tokens.
        """
        perf = {}
        for name in PERF_OUTPUTS:
            values = [each[name] for each in self._steps if name in each]
            if values and name in _FIRST_STEP:
                perf[name] = values[0]
            elif values and name in _LAST_STEP:
                perf[name] = values[-1]
            elif values:
                perf[name] = np.sum(values, axis=0, dtype=values[0].dtype)
        if {"acceptance_rate", _DRAFTED, _ACCEPTED} <= perf.keys():
            drafted, accepted = (int(perf[name].flat[0]) for name in (_DRAFTED, _ACCEPTED))
            rate = accepted / drafted if drafted else 0.0
            perf["acceptance_rate"] = np.array([[rate]], dtype=np.float32)
        return perf


def _check(inputs: Mapping[str, Array]) -> None:
    """Raise `InvalidRequest` if the request cannot be combined with draft tokens."""
    if len(inputs["input_ids"]) > 1:
        raise InvalidRequest(
            f"num_draft_tokens supports only one prompt per request, but the request has "
            f"{len(inputs['input_ids'])}; send one request per prompt"
        )
    for name, limit in _LIMITS.items():
        value: Any = np.max(inputs[name]) if name in inputs else 0
        if value > limit:
            shown = _NAMES.get(name, name)
            raise InvalidRequest(
                f"{shown} is {value}, but must be 1 with num_draft_tokens; omit {shown} or "
                "num_draft_tokens"
                if limit
                else f"{shown} cannot be combined with num_draft_tokens; omit one of the two inputs"
            )
    for name in _REJECTED:
        if name in inputs and inputs[name].size:
            raise InvalidRequest(
                f"{name} cannot be combined with num_draft_tokens; omit one of the two inputs"
            )


def _new_tokens(outputs: Mapping[str, Array]) -> list[int]:
    if "output_ids" not in outputs:
        return []
    return _ids(outputs["output_ids"][0, 0, : int(outputs["sequence_length"][0, 0])])


def _ids(array: Array) -> list[int]:
    ids: list[int] = array.tolist()
    return ids


def _number(value: int) -> Array:
    return np.array([[value]], dtype=np.int32)
