"""Print a response, either as text followed by statistics or as JSON."""

from __future__ import annotations

import math
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.target import Target
from trtllm_serve_cli.errors import TllmError

if TYPE_CHECKING:
    from trtllm_serve_cli.client.generate import Completion, GenerateRequest, Piece

# Replaces spaces at which `textwrap` must not break the line. After wrapping, the spaces are
# restored. The text itself cannot contain NUL, because `repr` escapes it.
_NO_BREAK = "\0"
# Time, in seconds, to wait for a response before printing how to cancel the request. By default,
# requests have no time limit, so the user may be waiting for a server that hangs.
NOTICE_S = 10.0


@dataclass(frozen=True, slots=True)
class CollectedStream:
    """A complete response, or the part received before the user pressed Ctrl-C."""

    pieces: Sequence[Piece]
    completion: Completion
    was_interrupted: bool


def collect_stream(target: Target, request: GenerateRequest, *, is_live: bool) -> CollectedStream:
    """Send the request and collect the response.

    If `is_live` is set, print the response as it arrives. If the user presses Ctrl-C, cancel the
    request and return the part received so far.
    """
    from trtllm_serve_cli.client.ask import stream_in_thread
    from trtllm_serve_cli.client.generate import summarize_pieces

    request = target.complete(request)
    pieces: list[Piece] = []
    was_interrupted = False
    arriving = stream_in_thread(
        target.endpoint, target.model, request, target.interface, target.timeout_s, target.info
    )
    started_s = time.monotonic()
    try:
        with closing(arriving), _notify_if_slow(NOTICE_S) as notice:
            for piece in arriving:
                notice.cancel()
                pieces.append(piece)
                if is_live:
                    print(printable(piece.text), end="", flush=True)
    except KeyboardInterrupt:
        was_interrupted = True
    except TllmError:
        _end_line(is_live and bool(pieces))
        raise
    _end_line(is_live)
    if was_interrupted:
        output.notify(
            describe_cancel(target, request, f"after {len(pieces)} pieces of the response")
        )
    completion = summarize_pieces(pieces, started_s, time.monotonic())
    return CollectedStream(pieces, completion, was_interrupted)


@contextmanager
def _notify_if_slow(after_s: float) -> Iterator[threading.Timer]:
    """Yield a timer that, after `after_s` seconds, prints how to cancel the request.

    The timer is started only if stderr is a terminal.
    """
    text = f"No response after {after_s:g} s. Press Ctrl-C to cancel the request."
    timer = threading.Timer(after_s, output.notify, (text,))
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield timer
    finally:
        timer.cancel()


def describe_cancel(target: Target, request: GenerateRequest, what: str) -> str:
    """Return a message that describes the effect of Ctrl-C on the request.

    `what` describes when the user pressed Ctrl-C, such as "after 3 pieces of the response".
    """
    if target.interface == "http" and not request.stream:
        return (
            f"Disconnected {what}. The server still completes the request, because Triton cancels "
            "HTTP requests only if their responses are streamed."
        )
    if target.interface == "openai":
        return f"Disconnected {what}. Most servers cancel a request when the client disconnects."
    return f"Cancelled {what}."


def show_texts(completion: Completion) -> None:
    """Print the text of each sequence of a response."""
    if len(completion.texts) == 1:
        print(printable(completion.text))
        return
    for index, text in enumerate(completion.texts):
        print(f"[{index}] {printable(text)}")


def show_figures(
    collected: CollectedStream, request: GenerateRequest, *, was_streamed: bool
) -> None:
    """Print log probabilities, performance metrics, token counts and latencies to stderr."""
    for line in describe_log_probs(collected, _width()):
        output.notify(line)
    completion = collected.completion
    if completion.perf and (perf := describe_perf(completion.perf)):
        output.notify(perf)
    parts = [describe(completion, was_streamed=was_streamed)]
    if _reached_limit(completion, request.max_tokens):
        parts.append(f"stopped at --max-tokens {request.max_tokens}")
    output.notify(" · ".join((*parts, f"id {request.request_id}")))


def _reached_limit(completion: Completion, max_tokens: int) -> bool:
    """Return whether a sequence has `max_tokens` tokens.

    Return False if the token counts of the sequences are unknown.
    """
    counts = [len(ids) for ids in completion.output_ids]
    if not counts and len(completion.texts) == 1:
        counts = [completion.num_output_tokens or 0]
    return max(counts, default=0) >= max_tokens


def printable(text: str) -> str:
    """Return `text`, with control characters except tabs and newlines escaped on a terminal."""
    if not sys.stdout.isatty():
        return text
    return output.escape_controls(text)


def as_data(answer: Completion | TllmError) -> dict[str, Any]:
    """Return a response or an error as a JSON-compatible dict, with times in milliseconds."""
    if isinstance(answer, TllmError):
        return {"error": str(answer)}
    rate = answer.tokens_per_s
    data: dict[str, Any] = {
        "text_output": answer.text,
        "finish_reason": answer.finish_reasons[0] if answer.finish_reasons else None,
        "num_input_tokens": answer.num_input_tokens,
        "num_output_tokens": answer.num_output_tokens,
        "ttft_ms": None if answer.ttft_s is None else round(answer.ttft_s * 1000, 3),
        "latency_ms": round(answer.latency_s * 1000, 3),
        "tokens_per_s": None if rate is None else round(rate, 2),
    }
    if len(answer.texts) > 1:
        data["texts"] = answer.texts
        data["finish_reasons"] = answer.finish_reasons
    if answer.cum_log_probs:
        data["cum_log_probs"] = answer.cum_log_probs
        data["output_log_probs"] = answer.output_log_probs
    if answer.perf:
        data["perf_metrics"] = dict(answer.perf)
    if answer.was_stopped:
        data["was_stopped"] = True
    return data


def describe(completion: Completion, *, was_streamed: bool) -> str:
    """Summarize a response in one line, such as `46 tokens · first after 85 ms · 48.2 tokens/s`."""
    count = completion.num_output_tokens
    parts = ["tokens unknown" if count is None else f"{count} token{'s' * (count != 1)}"]
    if was_streamed and completion.ttft_s is not None:
        parts.append(f"first after {completion.ttft_s * 1000:.0f} ms")
    else:
        parts.append(f"after {completion.latency_s * 1000:.0f} ms")
    if completion.tokens_per_s is not None:
        parts.append(f"{completion.tokens_per_s:.1f} tokens/s")
    if completion.was_stopped:
        parts.append(f"stopped after {completion.latency_s * 1000:.0f} ms")
    return " · ".join(parts)


def describe_perf(perf: Mapping[str, float]) -> str:
    """Summarize the engine's performance metrics for a request in one line.

    An example is `queued 1.2 ms · prefill 30.0 ms · 5 KV blocks, 3 new, 2 reused`.
    """
    parts = []
    for name, start, end in (
        ("queued", "arrival", "first_scheduled"),
        ("prefill", "first_scheduled", "first_token"),
        ("decode", "first_token", "last_token"),
    ):
        start_ns, end_ns = perf.get(f"{start}_time_ns"), perf.get(f"{end}_time_ns")
        if start_ns and end_ns:
            parts.append(f"{name} {(end_ns - start_ns) / 1e6:.1f} ms")
    if (total := perf.get("kv_cache_alloc_total_blocks")) is not None:
        new, reused = (perf.get(f"kv_cache_{n}_blocks", 0) for n in ("alloc_new", "reused"))
        parts.append(f"{total:.0f} KV blocks, {new:.0f} new, {reused:.0f} reused")
    if drafted := perf.get("total_draft_tokens"):
        accepted = perf.get("total_accepted_draft_tokens", 0)
        parts.append(f"{accepted:.0f} of {drafted:.0f} draft tokens accepted")
    return " · ".join(parts)


def describe_log_probs(collected: CollectedStream, width: int) -> list[str]:
    """Return lines with the log probabilities of each sequence and of each piece of the sequence.

    If a sequence arrived in one piece, omit the text, because the client cannot split the text into
    tokens.
    """
    lines: list[str] = []
    completion = collected.completion
    for index, total in enumerate(completion.cum_log_probs):
        each = dict(enumerate(completion.output_log_probs)).get(index, ())
        name = f" [{index}]" if len(completion.texts) > 1 else ""
        mean = f" · perplexity {math.exp(min(-total / len(each), 700)):.2f}" if each else ""
        lines.append(f"log probability{name} {total:.3f}{mean}")
        scored = [p for p in collected.pieces if p.sequence_index == index and p.output_log_probs]
        lines += _wrap([_pair(piece, has_text=len(scored) > 1) for piece in scored], width)
    return lines


def _pair(piece: Piece, *, has_text: bool) -> str:
    values = " ".join(f"{value:.3f}" for value in piece.output_log_probs)
    return f"{piece.text!r} {values}".replace(" ", _NO_BREAK) if has_text else values


def _wrap(items: Sequence[str], width: int) -> list[str]:
    wrapped = textwrap.wrap(
        " ".join(items),
        width,
        initial_indent="  ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_NO_BREAK, " ") for line in wrapped]


def _width() -> int:
    return shutil.get_terminal_size().columns


def _end_line(has_text: bool) -> None:
    if has_text:
        print(flush=True)
