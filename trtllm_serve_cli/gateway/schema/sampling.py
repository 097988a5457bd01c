"""Define the request fields that are common to chat completions and completions.

The names and ranges are from OpenAI's API reference
(https://platform.openai.com/docs/api-reference) and, for extensions, from vLLM's OpenAI-compatible
server (0.26). The exceptions are `Stop` and the `schema` of `ResponseFormat`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from trtllm_serve_cli.gateway.schema.marks import IGNORED, rejected

_NO_TRANSFER = "the gateway does not transfer caches between engines"

Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Bias = Annotated[float, msgspec.Meta(ge=-100, le=100)]
# The gateway accepts up to 16 stop sequences. OpenAI's API accepts 4, but clients of vLLM, which
# has no limit, send more.
Stop = Annotated[list[str], msgspec.Meta(max_length=16)]
# Pattern for the names of functions and JSON schemas in OpenAI's API.
Name = Annotated[str, msgspec.Meta(pattern="^[a-zA-Z0-9_-]{1,64}\\Z")]
# OpenAI's limits for `metadata`. It does not affect generation; the Responses API returns it.
Metadata = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]],
    msgspec.Meta(max_length=16),
]
TokenId = Annotated[int, msgspec.Meta(ge=0)]
# The maxima of the following types are those of Triton's INT32 inputs and of the engine workers.
MAX_INT32 = 2**31 - 1
TopK = Annotated[int, msgspec.Meta(ge=-1, le=MAX_INT32)]
MinTokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT32)]
RepetitionPenalty = Annotated[float, msgspec.Meta(gt=0, le=1e4)]


class StreamOptions(msgspec.Struct, kw_only=True):
    """Options for streaming. If `include_usage` is set, the last chunk contains the token counts.

    `continuous_usage_stats` is a vLLM extension: if `include_usage` is also set, each chunk
    contains the token counts of its choice so far.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False


class JsonSchema(msgspec.Struct, kw_only=True):
    """A JSON schema that the response must match."""

    name: Annotated[Name, IGNORED]
    schema: dict[str, Any]
    strict: Annotated[bool | None, IGNORED] = None
    description: Annotated[str | None, IGNORED] = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """The format of the response.

    `schema` is a llama.cpp extension: a JSON schema for the type `json_object`.
    """

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None


class SamplingDefaults(msgspec.Struct, kw_only=True, frozen=True):
    """The default sampling parameters of a model."""

    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_k: TopK | None = None
    min_p: Probability | None = None
    repetition_penalty: RepetitionPenalty | None = None


class SamplingBody(msgspec.Struct, kw_only=True):
    """The fields that are common to chat completions and completions.

    `PROMPT` is the name of the field that contains the prompt.
    """

    PROMPT: ClassVar[str] = "messages"

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, Bias] | None = None
    seed: int | None = None
    stop: str | Stop | None = None
    response_format: ResponseFormat | None = None
    # vLLM's extensions to the OpenAI API.
    top_k: TopK | None = None
    min_p: Probability | None = None
    repetition_penalty: RepetitionPenalty | None = None
    min_tokens: MinTokens | None = None
    ignore_eos: bool = False
    stop_token_ids: list[TokenId] | None = None
    bad_words: list[str] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_grammar: str | None = None
    guided_choice: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    structured_outputs: dict[str, Any] | None = None
    return_token_ids: bool | None = None
    length_penalty: Annotated[float | None, IGNORED] = None
    spaces_between_special_tokens: Annotated[bool | None, IGNORED] = None
    request_id: Annotated[str | None, IGNORED] = None
    session_id: Annotated[str | None, IGNORED] = None
    stream_interval: Annotated[int | None, IGNORED] = None
    return_token_offsets: Annotated[bool | None, IGNORED] = None
    return_mm_kwargs: Annotated[bool | None, IGNORED] = None
    routed_experts_prompt_start: Annotated[int | None, IGNORED] = None
    use_beam_search: Annotated[
        bool | None,
        rejected(
            "the gateway does not support beam search", "Use `n` or, for completions, `best_of`."
        ),
    ] = False
    watermarking: Annotated[bool | None, rejected("the engines do not watermark text")] = False
    truncate_prompt_tokens: Annotated[
        int | None,
        rejected("the gateway does not truncate prompts", "Omit it, and shorten long prompts."),
    ] = None
    truncation_side: Annotated[
        str | None,
        rejected("the gateway does not truncate prompts", "Omit it, and shorten long prompts."),
    ] = None
    prompt_logprobs: Annotated[
        int | None,
        rejected(
            "prompt log probabilities are available only in /v1/completions",
            "Use `echo` and `logprobs` with /v1/completions.",
        ),
    ] = None
    logprob_token_ids: Annotated[
        list[int] | None,
        rejected(
            "the engines return log probabilities only for the most likely tokens",
            "Use `top_logprobs` or `logprobs`.",
        ),
    ] = None
    allowed_token_ids: Annotated[
        list[int] | None,
        rejected(
            "the engines cannot restrict the vocabulary", "Use `logit_bias` or `guided_choice`."
        ),
    ] = None
    priority: Annotated[int | None, rejected("requests run in order of arrival")] = 0
    return_tokens_as_token_ids: Annotated[
        bool | None, rejected("tokens are always returned as text", "Use `return_token_ids`.")
    ] = False
    cache_salt: Annotated[str | None, rejected("all requests share the engine's prefix cache")] = (
        None
    )
    kv_transfer_params: Annotated[dict[str, Any] | None, rejected(_NO_TRANSFER)] = None
    ec_transfer_params: Annotated[dict[str, Any] | None, rejected(_NO_TRANSFER)] = None
    vllm_xargs: Annotated[
        dict[str, Any] | None, rejected("the gateway does not support custom extensions")
    ] = None
    repetition_detection: Annotated[
        dict[str, Any] | None,
        rejected("the engines do not detect repetitions", "Use `repetition_penalty`."),
    ] = None
    thinking_token_budget: Annotated[
        int | None,
        rejected(
            "the engines cannot limit the number of reasoning tokens",
            "Use `max_tokens` to limit the whole response.",
        ),
    ] = None
    # Fields of OpenAI's API that do not affect generation.
    user: Annotated[str | None, IGNORED] = None

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def repeats_usage(self) -> bool:
        options = self.stream_options
        return self.includes_usage and options is not None and options.continuous_usage_stats
