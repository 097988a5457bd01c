"""Records of requests; all times are in seconds from the start of the run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

INTERRUPTED = "interrupted"
# No server accepts connections at the address.
NO_CONNECTION = "connection"
REJECTED = "rejected"
TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True)
class RequestError:
    """The reason why a request failed.

    `kind` is `server` (an error in the response), `rejected` (the server's queue was full),
    `connection`, `timed_out` (the request exceeded the run's timeout), `no_tokens`, `interrupted`
    (the run ended while it was in flight), `reset` (the server reset the HTTP/2 stream), the gRPC
    status in lower case (`cancelled` …), or `http_` and the HTTP status.
    """

    kind: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """The times and counts of one request.

    docs/reference/benchmark-metrics.md has the formulas of the metrics.

    `chunk_s` and `chunk_tokens` have one entry for each response with tokens; `end_s` is the
    arrival of the final response, or of the failure. `held_s` is how long a concurrency cap delayed
    the request past its due time. `queue_s` is the time in the engine's queue that the server
    reports. `run` numbers the repeats and `target` the servers and models, from 0. Requests of a
    conversation share `conversation` and differ in `turn`. Ramp requests are excluded from all
    metrics.
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
        """Return the record as a line of `requests.jsonl`."""
        return asdict(self) | {
            "first_token_s": self.first_token_s,
            "num_output_tokens": self.num_output_tokens,
        }

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> RequestRecord:
        """Parse a line of `requests.jsonl`; raise `KeyError` or `TypeError` if it is invalid."""
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
