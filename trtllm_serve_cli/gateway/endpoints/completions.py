"""Handle `POST /v1/completions`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trtllm_serve_cli.gateway.access.admission import admit, process
from trtllm_serve_cli.gateway.endpoints.completion_log_probs import (
    describe_log_probs,
    describe_prompt,
    join,
)
from trtllm_serve_cli.gateway.errors import invalid
from trtllm_serve_cli.gateway.generation.generation import Generation, GenerationPlan
from trtllm_serve_cli.gateway.generation.text_stream import TextDelta
from trtllm_serve_cli.gateway.http import read_json
from trtllm_serve_cli.gateway.respond import Writer, respond
from trtllm_serve_cli.gateway.sampling import apply_defaults, plan_generation
from trtllm_serve_cli.gateway.schema.completions import (
    DEFAULT_MAX_TOKENS,
    MAX_SEQUENCES,
    CompletionBody,
)
from trtllm_serve_cli.gateway.served_model import LoadedModel
from trtllm_serve_cli.gateway.usage import describe_usage
from trtllm_serve_cli.runtime.engine import FinishReason, PromptFacts

_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class CompletionPlan:
    """A planned completion of one or more prompts.

    The engine generates `num_generated` sequences per prompt. The response contains the best
    `num_choices` sequences of each prompt.
    """

    generations: list[GenerationPlan]
    # The text of each prompt, or [] if `echoes` is not set.
    prompts: list[str]
    num_choices: int
    num_generated: int
    returns_log_probs: bool
    # Whether each choice starts with its prompt.
    echoes: bool
    includes_usage: bool
    # Whether each chunk contains the token counts of its choice so far.
    repeats_usage: bool = False
    returns_token_ids: bool = False
    # Whether the response contains prompt log probabilities.
    scores_prompts: bool = False
    # Whether the response contains only the prompts.
    discards_output: bool = False


async def create_completion(request: Request) -> Response:
    """Generate text that continues each prompt."""
    body = await read_json(request, CompletionBody)
    model = request.app.state.models.find_generating(body.model)
    check_sequences(body)
    await admit(request, model.name, body.num_sequences)
    plan = await process(request, partial(plan_completion, model, body))
    writer = CompletionWriter(model, plan)
    return await respond(request, model, plan.generations, writer, is_streaming=bool(body.stream))


def check_sequences(body: CompletionBody) -> None:
    """Raise `ApiError` (400) if the request generates more than `MAX_SEQUENCES` sequences."""
    if body.num_sequences > MAX_SEQUENCES:
        raise invalid(
            f"The request generates {body.num_sequences} sequences, but the maximum is "
            f"{MAX_SEQUENCES}. Send fewer prompts, or reduce `n` or `best_of`.",
            "prompt",
        )


def plan_completion(model: LoadedModel, body: CompletionBody) -> CompletionPlan:
    """Plan a completion. Raise `ApiError` (400) if the request is not valid."""
    best_of = body.num_generated
    if best_of < body.num_choices:
        raise invalid(
            f"`best_of` must be at least `n` ({body.num_choices}), but is {best_of}. Increase or "
            "omit `best_of`.",
            "best_of",
        )
    if best_of > body.num_choices and body.stream:
        raise invalid(
            "Requests with `best_of` greater than `n` cannot be streamed. Omit `stream` or "
            "`best_of`.",
            "best_of",
        )
    scores_prompts = bool(body.echo) and body.logprobs is not None
    if scores_prompts and body.stream and body.num_choices > 1:
        raise invalid(
            "Requests with `echo`, `logprobs` and `n` greater than 1 cannot be streamed. Omit "
            "`stream` or `n`.",
            "stream",
        )
    discards_output = body.max_tokens == 0
    if discards_output and not body.echo:
        raise invalid(
            "`max_tokens` must be at least 1, unless `echo` is true. Increase `max_tokens`, or set "
            "`echo` to true.",
            "max_tokens",
        )
    # Requests for prompt log probabilities do not use the model's default sampling parameters, even
    # if they also generate text, because these probabilities do not depend on sampling.
    sampled = body if scores_prompts else apply_defaults(model, body)
    if discards_output:
        # The engine still generates one token. Use greedy decoding without penalties, because the
        # token is discarded.
        sampled = _without_sampling(body)
    prompts = body.prompts
    if not prompts:
        raise invalid("`prompt` is an empty list. Send text or token ids.", "prompt")
    if isinstance(body.prompt, list) and len({type(each) for each in body.prompt}) > 1:
        raise invalid(
            "The items of `prompt` have different types. Send only strings, only token ids, or "
            "only lists of token ids.",
            "prompt",
        )
    ids = [_encode_prompt(model, prompt, body) for prompt in prompts]
    generations = [
        plan_generation(
            model,
            sampled,
            each,
            max_tokens=_choose_max_tokens(model, body, each),
            num_sequences=best_of,
            returns_log_probs=body.logprobs is not None or best_of > body.num_choices,
            num_top_log_probs=body.logprobs or 0,
            returns_prompt_log_probs=scores_prompts,
        )
        for each in ids
    ]
    return CompletionPlan(
        generations,
        [_decode_prompt(model, each) for each in prompts] if body.echo else [],
        body.num_choices,
        best_of,
        body.logprobs is not None,
        bool(body.echo),
        body.includes_usage,
        body.repeats_usage,
        bool(body.return_token_ids),
        scores_prompts,
        discards_output,
    )


def _without_sampling(body: CompletionBody) -> CompletionBody:
    """Return a copy of the request that selects greedy decoding.

    The copy does not set penalties, `logit_bias`, `bad_words`, `min_p` or `min_tokens`.
    """
    return msgspec.structs.replace(
        body,
        temperature=0,
        min_p=None,
        logit_bias=None,
        bad_words=None,
        min_tokens=None,
        repetition_penalty=None,
        presence_penalty=None,
        frequency_penalty=None,
    )


def _choose_max_tokens(model: LoadedModel, body: CompletionBody, input_ids: list[int]) -> int:
    if body.max_tokens is not None:
        return max(1, body.max_tokens)
    return max(1, min(DEFAULT_MAX_TOKENS, model.max_seq_len - len(input_ids)))


def _encode_prompt(model: LoadedModel, prompt: str | list[int], body: CompletionBody) -> list[int]:
    if isinstance(prompt, str):
        adds = True if body.add_special_tokens is None else body.add_special_tokens
        ids = model.encode(prompt, "prompt", add_special_tokens=adds) if prompt else []
        # As in OpenAI's API, an empty prompt starts a new document: replace it with the end token,
        # which separates documents.
        return ids or [model.tokenizer.end_id]
    if not prompt:
        raise invalid(
            "`prompt` contains an empty list. Send at least one token id per prompt.", "prompt"
        )
    model.check_token_ids(prompt, "prompt")
    return prompt


def _decode_prompt(model: LoadedModel, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt)


@dataclass(slots=True)
class _Choice:
    """The output generated so far for one sequence."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    top_log_probs: list[Any] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    @property
    def score(self) -> float:
        """The mean log probability of the tokens. `best_of` ranks sequences by this score."""
        return sum(self.log_probs) / max(len(self.log_probs), 1)


class CompletionWriter(Writer):
    """Writes the response to a completion request, as one object or as chunks of a stream."""

    def __init__(self, model: LoadedModel, plan: CompletionPlan) -> None:
        self._model = model
        self._plan = plan
        num_sequences = len(plan.generations) * plan.num_generated
        self._choices = [_Choice() for _ in range(num_sequences)]
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.name,
            "system_fingerprint": model.fingerprint,
        }
        self._start = b"data: " + _encode(self._head)[:-1] + b',"choices":['
        self._end = b'],"usage":null}\n\n' if plan.includes_usage else b"]}\n\n"
        # The number of tokens sent so far for each choice.
        self._num_tokens = [0] * num_sequences
        # The number of characters generated so far for each choice, to compute `text_offset`.
        self._offsets = [0] * num_sequences
        # The choices whose prompt token ids have not been sent yet.
        self._without_prompt_ids = set(range(num_sequences if plan.returns_token_ids else 0))
        # Maps each prompt index to the engine's information about the prompt, for example its log
        # probabilities.
        self._prompts: dict[int, PromptFacts] = {}

    def first_events(self) -> bytes:
        """Return the chunks with the prompts, if the client requested them.

        If the client also requested log probabilities, `events` returns the prompts instead.
        """
        if not self._plan.echoes or self._plan.scores_prompts:
            return b""
        return b"".join(
            self._chunk(index, self._prompt_of(index), None) for index in range(len(self._choices))
        )

    def events(self, delta: TextDelta) -> bytes:
        """Return the chunks for new text.

        If `delta` contains prompt log probabilities, return the prompt first.
        """
        prompt = self._prompt_event(delta)
        kept = self._keep(delta)
        self._num_tokens[delta.index] += len(kept.token_ids)
        return prompt + self._text_event(kept)

    def _prompt_event(self, delta: TextDelta) -> bytes:
        """Return the chunk with the prompt and its log probabilities.

        Return b"" if `delta` contains no prompt log probabilities, or if they were not requested.
        """
        if not self._plan.scores_prompts or delta.prompt is None:
            return b""
        self._prompts[delta.index // self._plan.num_generated] = delta.prompt
        text = self._prompt_of(delta.index)
        return self._chunk(delta.index, text, self._describe_prompt(delta.index))

    def _text_event(self, delta: TextDelta) -> bytes:
        log_probs = self._describe_log_probs(delta)
        ids = delta.token_ids if self._plan.returns_token_ids else ()
        if not (delta.text or ids) and log_probs is None and delta.finish_reason is None:
            return b""
        if log_probs is None and delta.finish_reason is None and not ids:
            middle = b'{"index":%d,"text":' % delta.index
            rest = b',"logprobs":null,"finish_reason":null}'
            end = self._end_of(delta.index)
            return b"".join((self._start, middle, _encode(delta.text), rest, end))
        return self._chunk(
            delta.index, delta.text, log_probs, delta.finish_reason, delta.stop_reason, ids
        )

    def last_events(self, generation: Generation) -> bytes:
        """Return the usage chunk, if the client requested it, and the `[DONE]` event."""
        events = b""
        if self._plan.includes_usage:
            usage = self._describe_usage(generation)
            events = self._start + b'],"usage":' + _encode(usage) + b"}\n\n"
        return events + b"data: [DONE]\n\n"

    def collect(self, delta: TextDelta) -> None:
        """Add new text to the body of a non-streaming response."""
        kept, choice = self._keep(delta), self._choices[delta.index]
        choice.text.append(kept.text)
        choice.token_ids += kept.token_ids
        choice.log_probs += kept.log_probs
        choice.top_log_probs += kept.top_log_probs
        if kept.prompt is not None:
            self._prompts[kept.index // self._plan.num_generated] = kept.prompt
        if kept.finish_reason is not None:
            choice.finish_reason = kept.finish_reason
            choice.stop_reason = kept.stop_reason

    def whole(self, generation: Generation) -> bytes:
        """Return the body of a non-streaming response."""
        usage = self._describe_usage(generation)
        return _encode(self._head | {"choices": self._describe_choices(), "usage": usage})

    def _keep(self, delta: TextDelta) -> TextDelta:
        """Return `delta`, without the generated output if the response contains only prompts."""
        if not self._plan.discards_output:
            return delta
        reason: FinishReason | None = None if delta.finish_reason is None else "length"
        return TextDelta(delta.index, finish_reason=reason, prompt=delta.prompt)

    def _describe_usage(self, generation: Generation) -> dict[str, Any]:
        num_output_tokens = 0 if self._plan.discards_output else generation.num_output_tokens
        return describe_usage(
            generation.num_input_tokens, num_output_tokens, generation.num_cached_tokens
        )

    def _describe_choices(self) -> list[dict[str, Any]]:
        """Return the best `num_choices` sequences of each prompt."""
        described: list[dict[str, Any]] = []
        step = self._plan.num_generated
        for first in range(0, len(self._choices), step):
            best = range(first, first + step)
            if step > self._plan.num_choices:
                best = sorted(best, key=lambda index: -self._choices[index].score)  # type: ignore[assignment]
            for index in best[: self._plan.num_choices]:
                choice = self._choices[index]
                log_probs = self._describe_log_probs(
                    TextDelta(
                        index,
                        token_ids=tuple(choice.token_ids),
                        log_probs=tuple(choice.log_probs),
                        top_log_probs=tuple(choice.top_log_probs),
                    )
                )
                if self._plan.scores_prompts:
                    log_probs = join(self._describe_prompt(index), log_probs)
                described.append(
                    _describe_choice(
                        len(described),
                        "".join((self._prompt_of(index), *choice.text)),
                        log_probs,
                        choice.finish_reason,
                        choice.stop_reason,
                        self._describe_ids(index, choice.token_ids),
                    )
                )
        return described

    def _prompt_of(self, index: int) -> str:
        return self._plan.prompts[index // self._plan.num_generated] if self._plan.echoes else ""

    def _chunk(
        self,
        index: int,
        text: str,
        log_probs: Mapping[str, Any] | None,
        finish_reason: str | None = None,
        stop_reason: str | int | None = None,
        token_ids: Sequence[int] = (),
    ) -> bytes:
        ids = self._describe_ids(index, token_ids)
        if index in self._without_prompt_ids:
            self._without_prompt_ids.remove(index)
        else:
            ids.pop("prompt_token_ids", None)
        choice = _describe_choice(index, text, log_probs, finish_reason, stop_reason, ids)
        return self._start + _encode(choice) + self._end_of(index)

    def _end_of(self, index: int) -> bytes:
        """Return the end of a chunk, including the usage of its choice if requested."""
        if not self._plan.repeats_usage:
            return self._end
        plan = self._plan.generations[index // self._plan.num_generated]
        usage = describe_usage(len(plan.input_ids), self._num_tokens[index])
        return b'],"usage":' + _encode(usage) + b"}\n\n"

    def _describe_ids(self, index: int, token_ids: Sequence[int]) -> dict[str, Any]:
        """Return vLLM's token id fields of a choice, or {} if the client did not request them."""
        if not self._plan.returns_token_ids:
            return {}
        plan = self._plan.generations[index // self._plan.num_generated]
        return {"prompt_token_ids": plan.input_ids, "token_ids": token_ids}

    def _describe_log_probs(self, delta: TextDelta) -> dict[str, Any] | None:
        if not self._plan.returns_log_probs or not delta.token_ids:
            return None
        start = len(self._prompt_of(delta.index)) + self._offsets[delta.index]
        described = describe_log_probs(
            self._model.tokenizer, delta.token_ids, delta.log_probs, delta.top_log_probs, start
        )
        self._offsets[delta.index] += sum(map(len, described["tokens"]))
        return described

    def _describe_prompt(self, index: int) -> dict[str, Any]:
        number = index // self._plan.num_generated
        return describe_prompt(
            self._model.tokenizer,
            self._plan.generations[number].input_ids,
            self._prompt_of(index),
            self._prompts[number],
        )


def _describe_choice(
    index: int,
    text: str,
    log_probs: Mapping[str, Any] | None,
    finish_reason: str | None,
    stop_reason: str | int | None,
    token_ids: Mapping[str, Any],
) -> dict[str, Any]:
    described = {
        "index": index,
        "text": text,
        "logprobs": log_probs,
        "finish_reason": finish_reason,
        **token_ids,
    }
    if stop_reason is not None:
        described["stop_reason"] = stop_reason
    return described
