"""Limit the requests of each API key, and the requests that run and wait at the same time."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from trtllm_serve_cli.gateway.access.keys import ApiKey
from trtllm_serve_cli.gateway.errors import RETRY_AFTER_S, ApiError

_MINUTE_S = 60.0
# Seconds after which a client may retry if its key runs too many requests at the same time.
_BUSY_RETRY_S = 1

Clock = Callable[[], float]


class TokenBucket:
    """A limit per minute. The unused part of the limit is refilled continuously.

    The bucket holds at most the amount of one minute. The amount is negative if more was used than
    expected, because the number of generated tokens is not known in advance.
    """

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._updated_s = clock()

    @property
    def level(self) -> float:
        """The amount that can be used now."""
        now_s = self._clock()
        refill = (now_s - self._updated_s) * self.per_minute / _MINUTE_S
        self._level = min(float(self.per_minute), self._level + max(refill, 0.0))
        self._updated_s = now_s
        return self._level

    def use(self, amount: float) -> None:
        """Use `amount`, even if it exceeds the level."""
        self._level = self.level - amount

    def wait_s(self, amount: float) -> float:
        """Return the seconds until the level is at least `amount`, or 0 if it is already.

        If `amount` exceeds the limit, return the seconds until the bucket is full.
        """
        missing = min(amount, self.per_minute) - self.level
        return max(0.0, missing) * _MINUTE_S / self.per_minute

    def resize(self, per_minute: int) -> None:
        """Change the limit. The used amount of the current minute remains used."""
        used = self.per_minute - self.level
        self.per_minute = per_minute
        self._level = per_minute - used


@dataclass
class KeyUsage:
    """The amounts that one key has used of its limits."""

    requests: TokenBucket | None = None
    tokens: TokenBucket | None = None
    num_running: int = 0


@dataclass(eq=False)
class Ticket:
    """The permission to run a request, or the request's place in the queue.

    The holder must call `release` once, when the response has ended or the client has left.
    """

    limits: Limits
    usage: KeyUsage | None
    granted: asyncio.Future[None] | None = None
    is_released: bool = False
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)

    @property
    def is_waiting(self) -> bool:
        return self.granted is not None and not self.granted.done()

    async def wait(self) -> None:
        """Wait until the request may run."""
        if self.granted is not None:
            await asyncio.shield(self.granted)

    def use_tokens(self, count: int) -> None:
        """Subtract generated tokens from the key's limit of tokens per minute."""
        if self.usage is not None and self.usage.tokens is not None:
            self.usage.tokens.use(count)

    def release(self) -> None:
        """Leave the queue, or let the next request in the queue run."""
        if not self.is_released:
            self.is_released = True
            self.limits.on_release(self)


class Limits:
    """The limits of a gateway process.

    At most `max_in_flight` requests run, and at most `max_waiting` requests wait in the order of
    their arrival. The limits of the keys are divided by `num_processes`, because each gateway
    process counts only its own requests.
    """

    def __init__(
        self,
        max_in_flight: int,
        max_waiting: int,
        num_processes: int = 1,
        clock: Clock = time.monotonic,
    ) -> None:
        self.max_in_flight = _share(max_in_flight, num_processes)
        self.max_waiting = max_waiting // num_processes
        self._num_processes = num_processes
        self._clock = clock
        self._usages: dict[str, KeyUsage] = {}
        self._queue: OrderedDict[Ticket, None] = OrderedDict()
        self.num_in_flight = 0

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def admit(self, key: ApiKey | None, num_tokens: int) -> Ticket:
        """Return a ticket for a request with `num_tokens` prompt tokens.

        Raise `ApiError` (429) if a limit does not allow the request. In this case, the request
        does not count towards any limit.
        """
        usage = None if key is None else self._find_usage(key)
        if key is not None and usage is not None:
            self._check_key(key, usage, num_tokens)
        is_full = self.num_in_flight >= self.max_in_flight
        if is_full and len(self._queue) >= self.max_waiting:
            raise _queue_full(self.num_in_flight, len(self._queue))
        if usage is not None:
            usage.num_running += 1
            if usage.requests is not None:
                usage.requests.use(1)
            if usage.tokens is not None:
                usage.tokens.use(num_tokens)
        ticket = Ticket(self, usage, headers=_rate_headers(usage))
        if is_full:
            ticket.granted = asyncio.get_running_loop().create_future()
            self._queue[ticket] = None
        else:
            self.num_in_flight += 1
        return ticket

    def on_release(self, ticket: Ticket) -> None:
        """Count the end of a request. Only `Ticket.release` calls this method."""
        if ticket.usage is not None:
            ticket.usage.num_running -= 1
        if ticket.is_waiting:
            del self._queue[ticket]
            return
        self.num_in_flight -= 1
        if self._queue and self.num_in_flight < self.max_in_flight:
            following, _ = self._queue.popitem(last=False)
            assert following.granted is not None
            following.granted.set_result(None)
            self.num_in_flight += 1

    def _find_usage(self, key: ApiKey) -> KeyUsage:
        """Return the usage of a key. Apply limits that have changed since its last request."""
        usage = self._usages.setdefault(key.hash, KeyUsage())
        usage.requests = self._adapt(usage.requests, key.requests_per_minute)
        usage.tokens = self._adapt(usage.tokens, key.tokens_per_minute)
        return usage

    def _adapt(self, bucket: TokenBucket | None, per_minute: int | None) -> TokenBucket | None:
        if per_minute is None:
            return None
        share = _share(per_minute, self._num_processes)
        if bucket is None:
            return TokenBucket(share, self._clock)
        if bucket.per_minute != share:
            bucket.resize(share)
        return bucket

    def _check_key(self, key: ApiKey, usage: KeyUsage, num_tokens: int) -> None:
        if key.concurrency is not None:
            share = _share(key.concurrency, self._num_processes)
            if usage.num_running >= share:
                raise _limited(key, "concurrency", f"{share} requests at the same time",
                               _BUSY_RETRY_S, usage)  # fmt: skip
        if key.tokens_per_minute is not None and num_tokens > key.tokens_per_minute:
            raise _never_allowed(key, key.tokens_per_minute, num_tokens)
        for name, bucket, amount in (
            ("requests", usage.requests, 1),
            ("tokens", usage.tokens, max(num_tokens, 1)),
        ):
            if bucket is not None and (wait_s := bucket.wait_s(amount)) > 0:
                raise _limited(key, name, f"{bucket.per_minute} {name} per minute", wait_s, usage)


def _share(limit: int, num_processes: int) -> int:
    """Return the part of a limit for one process, which is at least 1."""
    return max(1, limit // num_processes)


def _limited(key: ApiKey, reason: str, limit: str, wait_s: float, usage: KeyUsage) -> ApiError:
    seconds = math.ceil(wait_s)
    return ApiError(
        429,
        f"The API key '{key.name}' has reached its limit of {limit}. Retry the request after "
        f"{seconds} s.",
        code="rate_limit_exceeded",
        retry_after_s=seconds,
        reason=reason,
        headers={name.decode(): value.decode() for name, value in _rate_headers(usage)},
    )


def _never_allowed(key: ApiKey, limit: int, num_tokens: int) -> ApiError:
    """Return the error for a prompt that exceeds the limit. A retry cannot succeed.

    OpenAI's clients do not retry a response with the header `x-should-retry: false`.
    """
    return ApiError(
        429,
        f"The prompt has {num_tokens} tokens, but the API key '{key.name}' may use at most {limit} "
        "tokens per minute. Send a shorter prompt.",
        code="rate_limit_exceeded",
        reason="tokens",
        headers={"x-should-retry": "false"},
    )


def _queue_full(num_running: int, num_waiting: int) -> ApiError:
    return ApiError(
        429,
        f"The gateway is busy: {num_running} requests are running and {num_waiting} are waiting. "
        "Retry the request.",
        code="queue_full",
        retry_after_s=RETRY_AFTER_S,
        reason="queue_full",
    )


def _rate_headers(usage: KeyUsage | None) -> list[tuple[bytes, bytes]]:
    """Return OpenAI's headers for the limits of a key and for what remains of them.

    Source: https://platform.openai.com/docs/guides/rate-limits, "Rate limits in headers".
    """
    if usage is None:
        return []
    headers = []
    for name, bucket in (("requests", usage.requests), ("tokens", usage.tokens)):
        if bucket is None:
            continue
        values = {
            "limit": str(bucket.per_minute),
            "remaining": str(max(0, int(bucket.level))),
            "reset": format_duration(bucket.wait_s(bucket.per_minute)),
        }
        headers += [
            (f"x-ratelimit-{each}-{name}".encode(), value.encode())
            for each, value in values.items()
        ]
    return headers


def format_duration(seconds: float) -> str:
    """Return a duration in the format of OpenAI's headers, for example "6m0s" or "20ms"."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{f'{minutes}m' if minutes else ''}{rest / 1000:g}s"
