"""What was seen of each request; all times in seconds from the start of the run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class RequestError:
    """Why a request has no whole answer.

    `kind` is `server` (an error in the response), `no_tokens`, the gRPC status in lower case
    (`unavailable`, `cancelled` …), or `interrupted` (the run was stopped while it was in flight).
    """

    kind: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request's times and counts. docs/metrics.md has the formulas made from them.

    `chunk_s` and `chunk_tokens` have one entry for each response that carried tokens; `end_s` is
    the arrival of the final response, or of the failure.
    """

    index: int
    due_s: float
    sent_s: float
    end_s: float
    num_input_tokens: int
    chunk_s: tuple[float, ...] = ()
    chunk_tokens: tuple[int, ...] = ()
    error: RequestError | None = None

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
