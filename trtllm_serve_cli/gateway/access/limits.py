"""Enforce per-key limits and the overall limits for running and queued requests."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trtllm_serve_cli.gateway.access.keys import ApiKey
from trtllm_serve_cli.gateway.access.usage import UsageTable
from trtllm_serve_cli.gateway.errors import RETRY_AFTER_S, ApiError

_MINUTE_S = 60.0
# Retry-After value, in seconds, for keys that have reached their concurrency limit.
_BUSY_RETRY_S = 1

Clock = Callable[[], float]


class TokenBucket:
    """A per-minute limit, implemented as a token bucket that refills continuously.

    The bucket holds at most one minute's allowance. The number of generated tokens is not known in
    advance, so a request may use more than the bucket holds. The level can therefore be negative.

    `state` has two elements: the amount that was missing from the full bucket after the last use,
    and the time of the last use in seconds. `clock` returns the time in seconds.
    """

    def __init__(self, per_minute: int, clock: Clock, state: Any = None) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._state = [0.0, 0.0] if state is None else state

    @property
    def level(self) -> float:
        """The amount that can be used now."""
        used, updated_s = self._state
        refill = max(0.0, self._clock() - updated_s) * self.per_minute / _MINUTE_S
        return float(self.per_minute - max(0.0, used - refill))

    def use(self, amount: float) -> None:
        """Take `amount`, even if it exceeds the level. A negative amount refills the bucket."""
        self._state[:] = self.per_minute - self.level + amount, self._clock()

    def wait_s(self, amount: float) -> float:
        """Return the seconds until `amount` is available, or 0 if it already is.

        If `amount` exceeds the limit, return the seconds until the bucket is full.
        """
        missing = min(amount, self.per_minute) - self.level
        return max(0.0, missing) * _MINUTE_S / self.per_minute


@dataclass
class KeyUsage:
    """The current usage of one API key.

    `requests` and `tokens` are the token buckets for the key's per-minute limits, or None if the
    limit is not set.
    """

    # For each gateway process, the number of running and queued sequences.
    running: Any
    requests: TokenBucket | None = None
    tokens: TokenBucket | None = None

    @property
    def num_running(self) -> int:
        return int(self.running.sum())


@dataclass(eq=False)
class Ticket:
    """Permission to run a request, or its place in the queue.

    The caller must call `release` when the response has finished or the client has disconnected.
    `key` and `usage` are None if the request has no API key.
    """

    limits: Limits
    key: ApiKey | None = None
    usage: KeyUsage | None = None
    # Number of sequences that count towards the key's concurrency limit.
    num_sequences: int = 1
    # Completes when a queued request may run. None if the request was not queued.
    granted: asyncio.Future[None] | None = None
    is_released: bool = False
    # Rate limit headers of the response.
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)

    @property
    def is_waiting(self) -> bool:
        return self.granted is not None and not self.granted.done()

    async def wait(self) -> None:
        """Wait until the request may run."""
        if self.granted is not None:
            await asyncio.shield(self.granted)

    def charge_prompt(self, num_tokens: int) -> None:
        """Charge the prompt tokens to the key's tokens-per-minute limit, if the key has one.

        Raise `ApiError` (429) if the prompt has more tokens than the limit, or more than are
        currently available. A rejected request does not count towards the key's requests per
        minute. Until `release` is called, it still counts towards the key's concurrency limit and
        the number of running requests.
        """
        key, usage = self.key, self.usage
        if key is None or usage is None or usage.tokens is None:
            return
        # `_limited` adds the rate limit headers to an error response, so the ticket must not also
        # add them.
        self.headers = []
        with self.limits.table.locked():
            if usage.requests is not None:
                usage.requests.use(-1)
            _check_tokens(key, usage, num_tokens)
            if usage.requests is not None:
                usage.requests.use(1)
            usage.tokens.use(num_tokens)
        self.headers = _rate_headers(usage)

    def use_tokens(self, count: int) -> None:
        """Charge generated tokens to the key's tokens-per-minute limit, if the key has one."""
        if self.usage is not None and self.usage.tokens is not None:
            with self.limits.table.locked():
                self.usage.tokens.use(count)

    def release(self) -> None:
        """Leave the queue, or free the slot for the next queued request.

        Only the first call has an effect.
        """
        if not self.is_released:
            self.is_released = True
            self.limits.on_release(self)


class Limits:
    """The limits of a gateway process.

    At most `max_in_flight` requests run, and at most `max_waiting` requests wait in a FIFO queue.
    Both limits are divided by `num_processes`, because each gateway process has its own queue. Each
    process can run at least one request. All processes share the per-key usage in `table`. If
    `table` is None, each process counts the usage separately. `clock` returns the time in seconds.
    """

    def __init__(
        self,
        max_in_flight: int,
        max_waiting: int,
        num_processes: int = 1,
        clock: Clock = time.monotonic,
        table: UsageTable | None = None,
    ) -> None:
        self.max_in_flight = max(1, max_in_flight // num_processes)
        self.max_waiting = max_waiting // num_processes
        self.table = UsageTable() if table is None else table
        self._clock = clock
        self._queue: OrderedDict[Ticket, None] = OrderedDict()
        self.num_in_flight = 0

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def admit(self, key: ApiKey | None, num_sequences: int = 1) -> Ticket:
        """Return a ticket for a request that generates `num_sequences` sequences.

        Raise `ApiError` (429) if the request exceeds a limit of the key, or if the queue is full.
        Rejected requests do not count towards any limit. This method does not charge the prompt:
        call `Ticket.charge_prompt` when the number of prompt tokens is known.
        """
        with self.table.locked():
            usage = None if key is None else self._find_usage(key)
            if key is not None and usage is not None:
                _check_concurrency(key, usage, num_sequences)
                _check_rate(key, usage, "requests", usage.requests, 1)
                _check_rate(key, usage, "tokens", usage.tokens, 1)
            is_full = self.num_in_flight >= self.max_in_flight
            if is_full and len(self._queue) >= self.max_waiting:
                raise _queue_full(self.num_in_flight, len(self._queue))
            if usage is not None:
                usage.running[self.table.process_index] += num_sequences
                if usage.requests is not None:
                    usage.requests.use(1)
        ticket = Ticket(self, key, usage, num_sequences, headers=_rate_headers(usage))
        if is_full:
            ticket.granted = asyncio.get_running_loop().create_future()
            self._queue[ticket] = None
        else:
            self.num_in_flight += 1
        return ticket

    def on_release(self, ticket: Ticket) -> None:
        """Update the counts when a request ends or leaves the queue, and start the next request.

        Only `Ticket.release` calls this method.
        """
        if ticket.usage is not None:
            ticket.usage.running[self.table.process_index] -= ticket.num_sequences
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
        """Return a key's usage across all gateway processes, with the key's current limits."""
        row = self.table.find(key.hash)
        requests, tokens = (
            None if per_minute is None else TokenBucket(per_minute, self._clock, row[name])
            for name, per_minute in (
                ("requests", key.requests_per_minute),
                ("tokens", key.tokens_per_minute),
            )
        )
        return KeyUsage(row["running"], requests, tokens)


def _check_concurrency(key: ApiKey, usage: KeyUsage, num_sequences: int) -> None:
    limit = key.concurrency
    if limit is None or usage.num_running + num_sequences <= limit:
        return
    sequences = "1 concurrent sequence" if limit == 1 else f"{limit} concurrent sequences"
    if num_sequences > limit:
        raise _never_allowed(
            "concurrency",
            f"The request generates {num_sequences} sequences, but the API key '{key.name}' is "
            f"limited to {sequences}. Send fewer prompts, or reduce `n`.",
        )
    raise _limited(key, "concurrency", sequences, _BUSY_RETRY_S, usage)


def _check_rate(
    key: ApiKey, usage: KeyUsage, name: str, bucket: TokenBucket | None, amount: int
) -> None:
    if bucket is not None and (wait_s := bucket.wait_s(amount)) > 0:
        raise _limited(key, name, _describe_rate(bucket.per_minute, name), wait_s, usage)


def _describe_rate(per_minute: int, name: str) -> str:
    return f"{per_minute} {name.removesuffix('s') if per_minute == 1 else name} per minute"


def _check_tokens(key: ApiKey, usage: KeyUsage, num_tokens: int) -> None:
    limit = key.tokens_per_minute
    if limit is not None and num_tokens > limit:
        raise _never_allowed(
            "tokens",
            f"The request has {num_tokens} prompt tokens, but the API key '{key.name}' is limited "
            f"to {_describe_rate(limit, 'tokens')}. Shorten the prompts, or send fewer prompts per "
            "request.",
        )
    _check_rate(key, usage, "tokens", usage.tokens, max(num_tokens, 1))


def _limited(key: ApiKey, reason: str, limit: str, wait_s: float, usage: KeyUsage) -> ApiError:
    seconds = math.ceil(wait_s)
    return ApiError(
        429,
        f"The API key '{key.name}' is limited to {limit}, which the request would exceed. Retry "
        f"the request after {seconds} s.",
        code="rate_limit_exceeded",
        retry_after_s=seconds,
        reason=reason,
        headers={name.decode(): value.decode() for name, value in _rate_headers(usage)},
    )


def _never_allowed(reason: str, message: str) -> ApiError:
    """Return the error for a request that alone exceeds a limit of its API key.

    Retrying cannot succeed, so the `x-should-retry: false` header keeps OpenAI's clients from
    retrying.
    """
    headers = {"x-should-retry": "false"}
    return ApiError(429, message, code="rate_limit_exceeded", reason=reason, headers=headers)


def _queue_full(num_running: int, num_waiting: int) -> ApiError:
    return ApiError(
        429,
        f"The queue is full: {num_running} requests are running and {num_waiting} are queued. "
        "Retry the request later.",
        code="queue_full",
        retry_after_s=RETRY_AFTER_S,
        reason="queue_full",
    )


def _rate_headers(usage: KeyUsage | None) -> list[tuple[bytes, bytes]]:
    """Return OpenAI's rate limit headers, or [] if the key has no per-minute limits.

    The headers contain each limit, the remaining amount, and the time until the full amount is
    available again. Source: https://platform.openai.com/docs/guides/rate-limits, "Rate
    limits in headers".
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
