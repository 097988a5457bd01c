"""Draw the requests of the soak test, and check each response.

The simulated engine draws each token from the prompt with the request's seed. A prompt of words
with one token each therefore determines the whole response, regardless of other requests. The text
of a real engine can depend on the batch, so only the number of tokens, the finish reason and the
conformance to a guide are checked.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

Interface = Literal["grpc", "http", "completions", "chat"]
# A client reads a whole response, cancels it after some tokens, disconnects without reading it,
# sends a guide or an adapter's name, or sends a request that the server must reject.
Kind = Literal["whole", "cancel", "leave", "guide", "adapter", "wrong"]
Outcome = Literal["complete", "cancelled", "left", "failed", "rejected"]

# In the demo model's tokenizer, each of these words with a preceding space is one token.
WORDS = ["one", "two", "three", "red", "green", "blue", "day", "night", "sun", "moon"]
GUIDE: dict[str, Any] = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "green", "blue"]}, "known": {"type": "boolean"}},
    "required": ["color", "known"],
    "additionalProperties": False,
}
TRITON: tuple[Interface, ...] = ("grpc", "http")
GATEWAY: tuple[Interface, ...] = ("completions", "chat")
_WEIGHTS: dict[Kind, int] = {
    "whole": 10, "cancel": 4, "leave": 1, "guide": 2, "adapter": 2, "wrong": 2,
}  # fmt: skip
# Invalid requests have too few or too many tokens, or the name of an adapter that does not exist.
_INVALID_TOKENS = (0, 1_000_000)
UNKNOWN_ADAPTER = "unknown"
_GUIDE_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Profile:
    """A served model and its capabilities.

    If `is_exact` is true, the words of a response are known in advance. `adapters` are the names of
    LoRA adapters. If `has_guides` is false, the engine rejects guides.
    """

    model: str
    is_exact: bool
    max_tokens: int
    adapters: tuple[str, ...] = ()
    has_guides: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """One request. `cancel_after` is the number of pieces after which the client cancels it."""

    kind: Kind
    interface: Interface
    words: tuple[str, ...]
    seed: int
    num_tokens: int
    is_stream: bool
    cancel_after: int = 0
    adapter: str = ""

    @property
    def prompt(self) -> str:
        return "".join(f" {word}" for word in self.words)

    @property
    def has_length(self) -> bool:
        """True if the response must have `num_tokens` tokens. A guide may end it earlier."""
        return self.kind not in ("guide", "wrong")

    def leaves_after(self, num_pieces: int) -> bool:
        """Return whether the client disconnects after it has received this number of pieces."""
        return self.kind == "leave" or (self.kind == "cancel" and num_pieces > self.cancel_after)


@dataclass(frozen=True, slots=True)
class Answer:
    """The response that a client received. `num_pieces` counts the pieces with text.

    `num_tokens` and `finish_reason` are the values in the response, if it contains them.
    """

    outcome: Outcome
    text: str = ""
    num_pieces: int = 0
    num_tokens: int | None = None
    finish_reason: str = ""
    error: str = ""
    sent_s: float = 0.0
    ended_s: float = 0.0


def draw_case(rng: Random, profile: Profile) -> Case:
    """Draw a request at random."""
    kinds = [kind for kind in _WEIGHTS if kind != "adapter" or profile.adapters]
    (kind,) = rng.choices(kinds, [_WEIGHTS[each] for each in kinds])
    if kind == "guide" and not profile.has_guides:
        kind = "wrong"
    num_tokens = rng.randint(4, profile.max_tokens)
    case = Case(
        kind,
        rng.choice((*TRITON, *GATEWAY)),
        tuple(rng.sample(WORDS, rng.randint(3, len(WORDS)))),
        rng.randrange(1 << 31),
        _GUIDE_TOKENS if kind == "guide" else num_tokens,
        kind in ("cancel", "leave") or rng.random() < 0.5,
        rng.randint(1, num_tokens // 2),
        rng.choice(profile.adapters) if kind == "adapter" else "",
    )
    return _make_invalid(case, rng) if kind == "wrong" else case


def _make_invalid(case: Case, rng: Random) -> Case:
    if rng.random() < 0.3:
        return replace(case, adapter=UNKNOWN_ADAPTER)
    return replace(case, num_tokens=rng.choice(_INVALID_TOKENS))


def expected_text(case: Case, num_tokens: int) -> str:
    """Return the first tokens of the simulated engine's response."""
    rng = Random(f"{case.seed} 0")
    return "".join(f" {case.words[rng.randrange(len(case.words))]}" for _ in range(num_tokens))


def find_problem(case: Case, answer: Answer, profile: Profile) -> str:
    """Return why a response is wrong, or "" if it is correct.

    A failed request only needs an error message, because requests may fail while a process is
    restarted.
    """
    if answer.outcome == "failed":
        return "" if answer.error else "the request failed without an error message"
    if case.kind == "wrong":
        return "" if answer.outcome == "rejected" else "an invalid request was not rejected"
    if answer.outcome == "rejected":
        return f"a valid request was rejected: {answer.error}"
    if profile.is_exact and not expected_text(case, case.num_tokens).startswith(answer.text):
        return f"the text is {answer.text!r} instead of {expected_text(case, case.num_tokens)!r}"
    if answer.outcome != "complete":
        return ""
    if case.kind == "guide":
        return _find_guide_problem(case, answer)
    if answer.num_tokens != case.num_tokens:
        return f"the response has {answer.num_tokens} tokens instead of {case.num_tokens}"
    if answer.finish_reason not in ("", "length"):
        return f"the finish reason is {answer.finish_reason}"
    if profile.is_exact and answer.text != expected_text(case, case.num_tokens):
        return f"the text ends early: {answer.text!r}"
    return ""


def _find_guide_problem(case: Case, answer: Answer) -> str:
    """Check a guided response. A response that reached its limit may be an incomplete object."""
    if (answer.num_tokens or 0) >= case.num_tokens:
        return "" if answer.text.lstrip().startswith("{") else f"not an object: {answer.text!r}"
    try:
        found = json.loads(answer.text)
    except ValueError:
        return f"the guided text is not valid JSON: {answer.text!r}"
    is_valid = (
        isinstance(found, dict)
        and sorted(found) == ["color", "known"]
        and found["color"] in GUIDE["properties"]["color"]["enum"]
        and isinstance(found["known"], bool)
    )
    return "" if is_valid else f"the guided text does not match its schema: {answer.text!r}"
