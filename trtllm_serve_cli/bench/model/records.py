"""What was seen of each request; all times in seconds from the start of its run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

INTERRUPTED = "interrupted"
# Nobody answers at the server's address (any more).
NO_CONNECTION = "connection"
REJECTED = "rejected"
TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True)
class RequestError:
    """Why a request has no whole answer.

    `kind` is `server` (an error in the response), `rejected` (the server had no room for it),
    `connection`, `timed_out` (after the time that this run allows), `no_tokens`, `interrupted` (the
    run ended while it was in flight), `reset` (the server ended the call, by HTTP/2's means), else
    the gRPC status in lower case (`cancelled` …) or `http_` and the HTTP status.
    """

    kind: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request's times and counts. docs/metrics.md has the formulas made from them.

    `chunk_s` and `chunk_tokens` have one entry for each response that carried tokens; `end_s` is
    the arrival of the final response, or of the failure. `held_s` is how long after its due time a
    cap on the requests in flight let it go. `queue_s` is how long the server says it waited for the
    engine. `run` numbers the repeats, `target` the servers and models, from 0; a conversation's
    requests share its `conversation` and have their `turn`. One in the ramp counts in no figure.
    """

    index: int
    due_s: float
    sent_s: float
    end_s: float
    num_input_tokens: int
    chunk_s: tuple[float, ...] = ()
    chunk_tokens: tuple[int, ...] = ()
    error: RequestError | None = None
    held_s: float = 0.0
    queue_s: float | None = None
    run: int = 0
    target: int = 0
    conversation: int | None = None
    turn: int = 0
    is_ramp: bool = False

    @property
    def first_token_s(self) -> float | None:
        return self.chunk_s[0] if self.chunk_s else None

    @property
    def num_output_tokens(self) -> int:
        return sum(self.chunk_tokens)

    @property
    def is_completed(self) -> bool:
        return self.error is None

    @property
    def is_interrupted(self) -> bool:
        return self.error is not None and self.error.kind == INTERRUPTED

    def to_json(self) -> dict[str, Any]:
        """One line of `requests.jsonl`."""
        return asdict(self) | {
            "first_token_s": self.first_token_s,
            "num_output_tokens": self.num_output_tokens,
        }

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> RequestRecord:
        """The record that such a line holds; raises `KeyError` or `TypeError` for another's."""
        error = line["error"]
        derived = {"first_token_s", "num_output_tokens"}
        return cls(
            **{name: value for name, value in line.items() if name not in derived}
            | {
                "chunk_s": tuple(line["chunk_s"]),
                "chunk_tokens": tuple(line["chunk_tokens"]),
                "error": None if error is None else RequestError(**error),
            }
        )
