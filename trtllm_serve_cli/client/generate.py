"""Define requests to text models and their responses, for gRPC, HTTP and the OpenAI API.

Most fields of `GenerateRequest` are named after tensors in NVIDIA's text models. Four fields are
not tensors:

- `lora_name` is sent as a request parameter.
- `request_id` is sent as the request id.
- `stop_after_ms` is not sent.
- `history` is sent only to the chat completions API of OpenAI-compatible servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from trtllm_serve_cli.option_fields import Option, Within

Interface = Literal["grpc", "http", "openai"]
# Triton's interfaces, which represent requests as tensors.
TritonInterface = Literal["grpc", "http"]
LOGITS = ("context_logits", "generation_logits")

# A message of a conversation, with the keys `role` and `content`.
Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor in the raw format of Triton's gRPC API.

    `shape` includes the batch dimension of 1.
    """

    shape: tuple[int, ...]
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A prompt and its sampling parameters.

    Fields that are None or empty use the model's defaults. Fields with an `Option` are options of
    `tllm infer`. The values are checked when the request is sent. `BadInput` is raised for the
    first value that does not fit its tensor. After `stop_after_ms`, the client cancels the request
    and returns the text received so far. The server's log and traces contain the `request_id`.
    `history` contains the messages before `text_input`, for servers that apply the chat template.
    """

    text_input: str
    max_tokens: Annotated[
        int, Within(1), Option("Maximum number of tokens to generate.", metavar="N")
    ] = 200
    stream: bool = True
    min_tokens: Annotated[
        int | None, Within(0), Option("Minimum number of tokens to generate.", metavar="N")
    ] = None
    stop_words: Annotated[
        tuple[str, ...],
        Option(
            "Stop generation at this word. Repeatable.",
            flags=("--stop",),
            metavar="WORD",
        ),
    ] = ()
    stop_after_ms: Annotated[
        int | None,
        Within(1),
        Option(
            (
                "Time limit for the response, in milliseconds. When the limit expires, the client "
                "cancels the request and returns the text received so far. Default: no limit."
            ),
            metavar="MS",
        ),
    ] = None
    temperature: Annotated[
        float | None,
        Within(0),
        Option(
            "Sampling temperature. Values below 1 favor likely tokens, and 0 selects the most "
            "likely token. Default: greedy decoding, unless --top-k, --top-p or --seed is set. "
            "With -i openai or a model in the vllm layout, the server's default applies.",
            metavar="T",
        ),
    ] = None
    top_k: Annotated[
        int | None,
        Within(0),
        Option(
            "Sample only from the K most likely tokens. 1 selects the most likely token, and 0 "
            "disables the limit.",
            metavar="K",
        ),
    ] = None
    top_p: Annotated[
        float | None,
        Within(0, 1),
        Option(
            "Sample from the smallest set of most likely tokens whose total probability is at "
            "least P.",
            metavar="P",
        ),
    ] = None
    seed: Annotated[
        int | None,
        Within(0, 2**64 - 1),
        Option(
            "Random seed for sampling. The same seed reproduces the same text only under the same "
            "load, because rounding errors depend on the other requests in the batch. Default: a "
            "random seed.",
            metavar="N",
        ),
    ] = None
    bad_words: Annotated[
        tuple[str, ...],
        Option(
            "Word that the model must not generate. Repeatable.",
            flags=("--bad",),
            metavar="WORD",
        ),
    ] = ()
    repetition_penalty: Annotated[
        float | None,
        Option(
            "Multiplicative penalty for tokens that already occur in the text. 1 disables the "
            "penalty.",
            metavar="X",
        ),
    ] = None
    presence_penalty: Annotated[
        float | None,
        Option(
            "Additive penalty for tokens that already occur in the text. 0 disables the penalty.",
            metavar="X",
        ),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        Option(
            "Additive penalty for each occurrence of a token in the text. 0 disables the penalty.",
            metavar="X",
        ),
    ] = None
    beam_width: Annotated[
        int | None,
        Within(1),
        Option(
            "Beam width. Values above 1 enable beam search and disable streaming. Default: 1.",
            metavar="N",
        ),
    ] = None
    length_penalty: Annotated[
        float | None,
        Option(
            "Length penalty for beam search. Values above 0 favor longer responses.",
            metavar="X",
        ),
    ] = None
    num_return_sequences: Annotated[
        int | None,
        Within(1),
        Option("Number of responses to generate. Default: the beam width.", metavar="N"),
    ] = None
    num_draft_tokens: Annotated[
        int | None,
        Within(0),
        Option(
            "Number of draft tokens per step for speculative decoding. Values above 0 disable "
            "streaming.",
            metavar="N",
        ),
    ] = None
    use_draft_logits: Annotated[
        bool,
        Option(
            "Accept draft tokens based on the draft model's logits. The draft engine must return "
            "logits.",
            flags=("--use-draft-logits",),
        ),
    ] = False
    lora_name: Annotated[
        str | None,
        Option("Name of a LoRA adapter on the server.", flags=("--lora",), metavar="NAME"),
    ] = None
    lora_task_id: Annotated[
        int | None,
        Within(0, 2**64 - 1),
        Option("Task id of the LoRA adapter on the server.", metavar="N"),
    ] = None
    return_log_probs: Annotated[
        bool,
        Option(
            "Print the log probability of each sequence and of each token in the response.",
            flags=("--logprobs",),
        ),
    ] = False
    return_perf_metrics: Annotated[
        bool,
        Option(
            "Print the server's timings and KV cache block counts for the request.",
            flags=("--perf",),
        ),
    ] = False
    return_context_logits: bool = False
    return_generation_logits: bool = False
    guided_decoding_guide_type: str | None = None
    guided_decoding_guide: str | None = None
    lora_weights: RawTensor | None = None
    lora_config: RawTensor | None = None
    request_id: str = ""
    history: tuple[Message, ...] = ()
    exclude_input_in_output: bool = True
    return_num_input_tokens: bool = True
    return_num_output_tokens: bool = True


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a sequence in one response message.

    If a message contains several sequences (beams), only its first piece has the token counts,
    `perf` and `logits`.

    - `at_s` is the arrival time on the monotonic clock, in seconds.
    - `num_output_tokens` counts only the tokens in this message, like the tensor in NVIDIA's
      models. OpenAI-compatible servers instead report one count for the whole response at its end.
    - `perf` contains the outputs that NVIDIA's models return for `return_perf_metrics`.
    - `logits` maps the names of the requested outputs to arrays without the batch dimension.
    - `was_stopped` is true in the last piece if `stop_after_ms` ended the response. This piece has
      no text.
    - `token_ids` contains the token ids of the text, or is empty if they are unknown.
    - `input_ids` contains the prompt's token ids in the first piece, if they are known. It is empty
      in all other pieces.
    - `batch_index` is the index of the prompt if the request has several prompts.
    - `finish_reason` is set in the last piece of a sequence if the server reports why the sequence
      ended, for example `stop` or `length`.
    """

    text: str
    at_s: float
    sequence_index: int = 0
    num_input_tokens: int | None = None
    num_output_tokens: int | None = None
    cum_log_prob: float | None = None
    output_log_probs: tuple[float, ...] = ()
    perf: Mapping[str, float] = field(default_factory=dict)
    logits: Mapping[str, Any] = field(default_factory=dict)
    was_stopped: bool = False
    token_ids: tuple[int, ...] = ()
    input_ids: tuple[int, ...] = ()
    batch_index: int = 0
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole response.

    - `texts` contains one text per sequence, ordered by `sequence_index`.
    - `latency_s` is the time from sending the request to the end of the response, in seconds.
    - `ttft_s` is the time to the first piece, in seconds, or None if no piece arrived. Without
      streaming, the first piece contains the whole text.
    - `was_stopped` is true if `stop_after_ms` ended the response.
    - `input_ids` contains the token ids of the prompt, or is empty if they are unknown.
    - `output_ids` contains the token ids of each sequence, or is empty if they are unknown.
    - `finish_reasons` contains the finish reason of each sequence, or None for a sequence without
      one. It is empty if the server does not report finish reasons.
    """

    texts: tuple[str, ...]
    latency_s: float
    ttft_s: float | None = None
    num_input_tokens: int | None = None
    num_output_tokens: int | None = None
    cum_log_probs: tuple[float, ...] = ()
    output_log_probs: tuple[tuple[float, ...], ...] = ()
    perf: Mapping[str, float] = field(default_factory=dict)
    logits: Mapping[str, Any] = field(default_factory=dict)
    was_stopped: bool = False
    input_ids: tuple[int, ...] = ()
    output_ids: tuple[tuple[int, ...], ...] = ()
    finish_reasons: tuple[str | None, ...] = ()

    @property
    def text(self) -> str:
        """The text of the first sequence, or an empty string if the response has no sequence."""
        return self.texts[0] if self.texts else ""

    @property
    def tokens_per_s(self) -> float | None:
        """The mean number of output tokens per second over the request latency.

        The rate is None if the number of output tokens is unknown or 0, or if the latency is 0.
        """
        if not self.num_output_tokens or self.latency_s <= 0:
            return None
        return self.num_output_tokens / self.latency_s


@dataclass(slots=True)
class _Sequence:
    texts: list[str] = field(default_factory=list)
    cum_log_prob: float | None = None
    log_probs: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None


def summarize_pieces(pieces: Iterable[Piece], started_s: float, ended_s: float) -> Completion:
    """Combine the pieces of a response into a completion.

    `started_s` is when the request was sent, and `ended_s` is when the response ended, both on the
    monotonic clock.
    """
    sequences: dict[int, _Sequence] = {}
    first_s: float | None = None
    num_input: int | None = None
    num_output: int | None = None
    perf: Mapping[str, float] = {}
    logits: Mapping[str, Any] = {}
    input_ids: tuple[int, ...] = ()
    was_stopped = False
    for piece in pieces:
        if piece.was_stopped:
            was_stopped = True
            continue
        perf = piece.perf or perf
        logits = piece.logits or logits
        input_ids = piece.input_ids or input_ids
        first_s = piece.at_s if first_s is None else first_s
        sequence = sequences.setdefault(piece.sequence_index, _Sequence())
        sequence.texts.append(piece.text)
        sequence.log_probs.extend(piece.output_log_probs)
        sequence.token_ids.extend(piece.token_ids)
        sequence.finish_reason = piece.finish_reason or sequence.finish_reason
        if piece.cum_log_prob is not None:
            sequence.cum_log_prob = piece.cum_log_prob
        if piece.num_input_tokens is not None:
            num_input = piece.num_input_tokens
        if piece.num_output_tokens is not None:
            num_output = (num_output or 0) + piece.num_output_tokens
    ordered = [sequences[index] for index in sorted(sequences)]
    finish_reasons = tuple(sequence.finish_reason for sequence in ordered)
    return Completion(
        texts=tuple("".join(sequence.texts) for sequence in ordered),
        latency_s=ended_s - started_s,
        ttft_s=None if first_s is None else first_s - started_s,
        num_input_tokens=num_input,
        num_output_tokens=num_output,
        cum_log_probs=tuple(s.cum_log_prob for s in ordered if s.cum_log_prob is not None),
        output_log_probs=tuple(tuple(s.log_probs) for s in ordered if s.log_probs),
        perf=perf,
        logits=logits,
        was_stopped=was_stopped,
        input_ids=input_ids,
        output_ids=tuple(tuple(sequence.token_ids) for sequence in ordered) if input_ids else (),
        finish_reasons=finish_reasons if any(finish_reasons) else (),
    )
