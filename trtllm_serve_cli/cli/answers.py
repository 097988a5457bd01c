"""An answer as the user sees it: text on a terminal, figures below it, or data for JSON."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from trtllm_serve_cli.cli import output
from trtllm_serve_cli.errors import TllmError

if TYPE_CHECKING:
    from trtllm_serve_cli.client import Completion

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """`text` as a terminal may have it: a model's control characters must not drive it."""
    if not sys.stdout.isatty():
        return text
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def end_line(has_text: bool) -> None:
    """Ends the line that an answer left open."""
    if has_text:
        print(flush=True)


def as_data(answer: Completion | TllmError) -> dict[str, Any]:
    """An answer as JSON has it; times in milliseconds."""
    if isinstance(answer, TllmError):
        return {"error": str(answer)}
    rate = answer.tokens_per_s
    data: dict[str, Any] = {
        "text_output": answer.text,
        "num_input_tokens": answer.num_input_tokens,
        "num_output_tokens": answer.num_output_tokens,
        "ttft_ms": None if answer.ttft_s is None else round(answer.ttft_s * 1000, 3),
        "latency_ms": round(answer.latency_s * 1000, 3),
        "tokens_per_s": None if rate is None else round(rate, 2),
    }
    if len(answer.texts) > 1:
        data["texts"] = answer.texts
    if answer.cum_log_probs:
        data["cum_log_probs"] = answer.cum_log_probs
        data["output_log_probs"] = answer.output_log_probs
    return data


def show_log_probs(completion: Completion) -> None:
    """Each sequence's log probability, and its tokens', where the server told them."""
    for index, total in enumerate(completion.cum_log_probs):
        each = completion.output_log_probs[index : index + 1]
        listed = " ".join(f"{value:.3f}" for values in each for value in values)
        output.say(f"log probability [{index}]: {total:.3f} ({listed})")


def describe(completion: Completion, *, was_streamed: bool) -> str:
    """As in `46 tokens · first after 85 ms · 48.2 tokens/s`."""
    count = completion.num_output_tokens
    parts = ["tokens unknown" if count is None else f"{count} token{'s' * (count != 1)}"]
    if was_streamed and completion.ttft_s is not None:
        parts.append(f"first after {completion.ttft_s * 1000:.0f} ms")
    else:
        parts.append(f"after {completion.latency_s * 1000:.0f} ms")
    if completion.tokens_per_s is not None:
        parts.append(f"{completion.tokens_per_s:.1f} tokens/s")
    return " · ".join(parts)
