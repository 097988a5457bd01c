"""Define request records, with times in seconds since the start of the run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

INTERRUPTED = "interrupted"
# The error kind for requests whose connection could not be opened or was lost.
NO_CONNECTION = "connection"
REJECTED = "rejected"
TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True)
class RequestError:
    """The reason why a request failed.

    `kind` is one of:

    - `server`: the server returned an error or an invalid response.
    - `rejected`: the server rejected the request, for example because its queue was full.
    - `connection`: the server is unreachable, or the connection was lost.
    - `timed_out`: the request exceeded the timeout.
    - `no_response`: the call ended without a response.
    - `interrupted`: the run ended while the request was in flight.
    - `reset`: the server reset the HTTP/2 stream with an error code other than REFUSED_STREAM,
      CANCEL and ENHANCE_YOUR_CALM.
    - `http_` followed by an HTTP status, for example `http_404`: the server responded with this
      status.
    - A gRPC status in lowercase, for example `internal`: the call ended with this status.
      `cancelled` can also mean that the server reset the HTTP/2 stream with CANCEL.
    """

    kind: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """The times and token counts of one request.

    docs/reference/benchmark-metrics.md defines the metrics that are computed from the records.

    - `end_s` is the time when the final response arrived, or when the request ended with an error.
    - `chunk_s` and `chunk_tokens` have one entry for each response with tokens: the arrival time,
      and the number of tokens. Both are empty if no token arrived, for example because the model
      generated the end token first.
    - `held_s` is how long a concurrency cap delayed the request after its due time.
    - `queue_s` is the time in the engine's queue, or `None` if the server did not report it.
    - `run` and `target` are zero-based indexes.
    - `conversation` is the index of the conversation that contains the request, or `None`. `turn`
      is the zero-based position of the request in the conversation.
    - `is_ramp` is true if the request was due during the ramp. Metrics exclude ramp requests.
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
        """Return the record as a JSON-compatible dict, for a line of `requests.jsonl`."""
        return asdict(self) | {
            "first_token_s": self.first_token_s,
            "num_output_tokens": self.num_output_tokens,
        }

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> RequestRecord:
        """Create a record from the object in a line of `requests.jsonl`.

        Raise `KeyError` or `TypeError` if a field is missing or unknown, or if a list or the error
        has the wrong type. Numbers are not checked.
        """
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


def spread_tokens(num_tokens: int, num_chunks: int) -> tuple[int, ...]:
    """Distribute `num_tokens` tokens evenly across `num_chunks` chunks and return the counts."""
    upto = [num_tokens * chunk // num_chunks for chunk in range(num_chunks + 1)]
    return tuple(later - earlier for earlier, later in pairwise(upto))
