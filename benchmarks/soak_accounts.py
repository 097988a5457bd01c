"""Compare the numbers of requests and tokens that clients and a server have counted.

The server may or may not have counted a request that its client cancelled or abandoned, or whose
connection was lost. All other numbers must be equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from soak_cases import Answer, Case

from trtllm_serve_cli.metrics.parse import Snapshot


@dataclass
class ClientCounts:
    """The requests that clients sent, by outcome, and their tokens.

    `broken` requests failed after their first token. For requests that did not complete, the server
    generated between `min_open_tokens` and `max_open_tokens` tokens.
    """

    complete: int = 0
    cancelled: int = 0
    left: int = 0
    failed: int = 0
    broken: int = 0
    rejected: int = 0
    tokens: int = 0
    min_open_tokens: int = 0
    max_open_tokens: int = 0

    def add(self, case: Case, answer: Answer) -> None:
        """Count a request that has ended."""
        setattr(self, answer.outcome, getattr(self, answer.outcome) + 1)
        if answer.outcome == "complete":
            self.tokens += answer.num_tokens or 0
        elif answer.outcome != "rejected":
            self.broken += answer.outcome == "failed" and answer.num_pieces > 0
            self.min_open_tokens += answer.num_pieces
            # The server may have generated all tokens before it noticed the cancellation.
            self.max_open_tokens += case.num_tokens if case.kind != "wrong" else 0

    @property
    def num_open(self) -> int:
        """The number of requests whose outcome on the server is uncertain."""
        return self.cancelled + self.left

    @property
    def total(self) -> int:
        return self.complete + self.cancelled + self.left + self.failed + self.rejected


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """The requests that a server has counted, by outcome, and their tokens."""

    complete: int = 0
    cancelled: int = 0
    failed: int = 0
    rejected: int = 0
    tokens: int = 0

    def __sub__(self, earlier: ServerCounts) -> ServerCounts:
        names = [each.name for each in fields(self)]
        return ServerCounts(*(getattr(self, n) - getattr(earlier, n) for n in names))


def read_triton(page: Snapshot, model: str) -> ServerCounts:
    """Read the counters of a text model from Triton's metrics page."""

    def count(*outcomes: str) -> int:
        values = (page.value("tllm_requests", model=model, outcome=each) for each in outcomes)
        return int(sum(value or 0 for value in values))

    tokens = int(page.value("tllm_generation_tokens", model=model) or 0)
    return ServerCounts(
        count("stop", "length"), count("cancelled"), count("error"), count("rejected"), tokens
    )


def read_gateway(page: Snapshot) -> ServerCounts:
    """Read the counters of all models from the gateway's metrics page."""
    ended: dict[str, float] = {}
    for each in page.find("gen_ai_server_request_duration_seconds_count"):
        kind = each.labels["error_type"]
        ended[kind] = ended.get(kind, 0) + each.value
    responses = page.find("tllm_gateway_http_responses")
    return ServerCounts(
        int(ended.get("", 0)),
        int(ended.get("disconnected", 0)),
        int(sum(value for kind, value in ended.items() if kind.startswith("5"))),
        int(sum(each.value for each in responses if each.labels["status"] in ("400", "404"))),
        int(page.value("tllm_gateway_tokens", gen_ai_token_type="output") or 0),
    )


def compare(client: ClientCounts, server: ServerCounts) -> list[str]:
    """Return a sentence for each difference that cancelled requests do not explain."""
    total = server.complete + server.cancelled + server.failed + server.rejected
    certain = client.complete + client.cancelled + client.broken + client.rejected
    ranges: Iterable[tuple[str, int, int, int]] = (
        ("requests", total, certain, client.total),
        ("complete requests", server.complete, client.complete, client.complete + client.num_open),
        ("rejected requests", server.rejected, client.rejected, client.rejected + client.failed),
        ("cancelled requests", server.cancelled, 0, client.num_open + client.failed),
        (
            "failed requests",
            server.failed,
            0,
            client.failed + (client.num_open if client.failed else 0),
        ),
        (
            "tokens",
            server.tokens,
            client.tokens + client.min_open_tokens,
            client.tokens + client.max_open_tokens,
        ),
    )
    return [
        f"the server counted {counted} {what}, the clients {least} to {most}"
        for what, counted, least, most in ranges
        if not least <= counted <= most
    ]
