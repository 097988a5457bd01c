"""Requests to a text model and its responses, independent of the interface.

The fields of `GenerateRequest` are named like upstream's tensors, except for three: `lora_name` is
a request parameter, `request_id` is sent as the request's id, and `stop_after_ms` is not sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from trtllm_serve_cli.option_fields import Option, Within

Interface = Literal["grpc", "http"]


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor in gRPC's raw format. `shape` includes the batch dimension of 1."""

    shape: tuple[int, ...]
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A prompt and its sampling parameters; None or empty selects the model's default.

    Fields with an `Option` are options of `tllm infer`. Values are checked when the request is
    sent: `BadInput` names the first field whose value does not fit its tensor. After
    `stop_after_ms`, the client cancels the request, and the response is the text received so far.
    The server's log and traces contain the `request_id`.
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
        Option("Stop the response at this word; repeatable.", flags=("--stop",), metavar="WORD"),
    ] = ()
    stop_after_ms: Annotated[
        int | None,
        Within(1),
        Option("Stop the response after this time and keep its text.", metavar="MS"),
    ] = None
    temperature: Annotated[
        float | None,
        Within(0),
        Option("Sampling temperature; below 1, likely tokens are favored.", metavar="T"),
    ] = None
    top_k: Annotated[
        int | None,
        Within(0),
        Option("Sample from the K most likely tokens; 1 is greedy.", metavar="K"),
    ] = None
    top_p: Annotated[
        float | None,
        Within(0, 1),
        Option("Sample from the most likely tokens with this total probability.", metavar="P"),
    ] = None
    seed: Annotated[
        int | None, Within(0, 2**64 - 1), Option("Random seed of the sampling.", metavar="N")
    ] = None
    bad_words: Annotated[
        tuple[str, ...],
        Option("Word not to generate; repeatable.", flags=("--bad",), metavar="WORD"),
    ] = ()
    repetition_penalty: Annotated[
        float | None, Option("Penalty for tokens that were already used; none at 1.", metavar="X")
    ] = None
    presence_penalty: Annotated[
        float | None, Option("Penalty for tokens that were already used; none at 0.", metavar="X")
    ] = None
    frequency_penalty: Annotated[
        float | None,
        Option("Penalty for tokens by how often they were used; none at 0.", metavar="X"),
    ] = None
    beam_width: Annotated[
        int | None,
        Within(1),
        Option("Width of the beam search; responses are not streamed.", metavar="N"),
    ] = None
    length_penalty: Annotated[
        float | None,
        Option(
            "Length penalty of beam search; above 0, longer responses are favored.",
            metavar="X",
        ),
    ] = None
    num_return_sequences: Annotated[
        int | None, Within(1), Option("Number of responses to generate.", metavar="N")
    ] = None
    lora_name: Annotated[
        str | None,
        Option("LoRA adapter on the server, by name.", flags=("--lora",), metavar="NAME"),
    ] = None
    lora_task_id: Annotated[
        int | None,
        Within(0, 2**64 - 1),
        Option("LoRA adapter, by task id.", metavar="N"),
    ] = None
    return_log_probs: Annotated[
        bool,
        Option(
            "Print the log probability of the response and of each token.", flags=("--logprobs",)
        ),
    ] = False
    return_perf_metrics: Annotated[
        bool, Option("Print the server's timings and KV cache blocks.", flags=("--perf",))
    ] = False
    guided_decoding_guide_type: str | None = None
    guided_decoding_guide: str | None = None
    lora_weights: RawTensor | None = None
    lora_config: RawTensor | None = None
    request_id: str = ""
    exclude_input_in_output: bool = True
    return_num_input_tokens: bool = True
    return_num_output_tokens: bool = True


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of one sequence that one response message contains.

    `at_s` is the arrival time on the monotonic clock. If a message has several sequences (beams),
    only its first piece has the token counts and `perf`. `num_output_tokens` counts the tokens of
    this message only, as upstream's tensor does. `perf` contains upstream's outputs for
    `return_perf_metrics`. If `stop_after_ms` ended the response, the last piece sets `was_stopped`
    and has no text.
    """

    text: str
    at_s: float
    sequence_index: int = 0
    num_input_tokens: int | None = None
    num_output_tokens: int | None = None
    cum_log_prob: float | None = None
    output_log_probs: tuple[float, ...] = ()
    perf: Mapping[str, float] = field(default_factory=dict)
    was_stopped: bool = False


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole response: one text per sequence, ordered by `sequence_index`.

    `ttft_s` is the time to the first piece, or `None` if no piece arrived. Without streaming, the
    first piece contains the whole text. `was_stopped` is true if `stop_after_ms` ended the
    response.
    """

    texts: tuple[str, ...]
    latency_s: float
    ttft_s: float | None = None
    num_input_tokens: int | None = None
    num_output_tokens: int | None = None
    cum_log_probs: tuple[float, ...] = ()
    output_log_probs: tuple[tuple[float, ...], ...] = ()
    perf: Mapping[str, float] = field(default_factory=dict)
    was_stopped: bool = False

    @property
    def text(self) -> str:
        """The text of the first sequence, or an empty string."""
        return self.texts[0] if self.texts else ""

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens, including the first, divided by the latency; None if either is unknown."""
        if not self.num_output_tokens or self.latency_s <= 0:
            return None
        return self.num_output_tokens / self.latency_s


@dataclass(slots=True)
class _Sequence:
    texts: list[str] = field(default_factory=list)
    cum_log_prob: float | None = None
    log_probs: list[float] = field(default_factory=list)


def summarize_pieces(pieces: Iterable[Piece], started_s: float, ended_s: float) -> Completion:
    """Combine `pieces` into the completion of a request sent at `started_s`."""
    sequences: dict[int, _Sequence] = {}
    first_s: float | None = None
    num_input: int | None = None
    num_output: int | None = None
    perf: Mapping[str, float] = {}
    was_stopped = False
    for piece in pieces:
        if piece.was_stopped:
            was_stopped = True
            continue
        perf = piece.perf or perf
        first_s = piece.at_s if first_s is None else first_s
        sequence = sequences.setdefault(piece.sequence_index, _Sequence())
        sequence.texts.append(piece.text)
        sequence.log_probs.extend(piece.output_log_probs)
        if piece.cum_log_prob is not None:
            sequence.cum_log_prob = piece.cum_log_prob
        if piece.num_input_tokens is not None:
            num_input = piece.num_input_tokens
        if piece.num_output_tokens is not None:
            num_output = (num_output or 0) + piece.num_output_tokens
    ordered = [sequences[index] for index in sorted(sequences)]
    return Completion(
        texts=tuple("".join(sequence.texts) for sequence in ordered),
        latency_s=ended_s - started_s,
        ttft_s=None if first_s is None else first_s - started_s,
        num_input_tokens=num_input,
        num_output_tokens=num_output,
        cum_log_probs=tuple(s.cum_log_prob for s in ordered if s.cum_log_prob is not None),
        output_log_probs=tuple(tuple(s.log_probs) for s in ordered if s.log_probs),
        perf=perf,
        was_stopped=was_stopped,
    )
