from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtllm_serve_cli.gateway.access.keys import ApiKey
from trtllm_serve_cli.gateway.access.limits import Limits, Ticket, TokenBucket, format_duration
from trtllm_serve_cli.gateway.access.usage import UsageTable
from trtllm_serve_cli.gateway.errors import ApiError


@dataclass
class Clock:
    now_s: float = 50.0

    def __call__(self) -> float:
        return self.now_s


def make_key(**limits: int | None) -> ApiKey:
    return ApiKey("alice", "0" * 64, 0.0, **limits)  # type: ignore[arg-type]


def admit_prompt(limits: Limits, key: ApiKey, num_tokens: int) -> Ticket:
    ticket = limits.admit(key)
    ticket.charge_prompt(num_tokens)
    return ticket


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.floats(0, 30), st.integers(1, 100)), max_size=60),
)
def test_bucket_never_allows_more_than_the_limit(
    per_minute: int, steps: list[tuple[float, int]]
) -> None:
    """Check that every interval uses at most one minute's amount plus the refill."""
    clock = Clock()
    bucket = TokenBucket(per_minute, clock)
    used: list[tuple[float, int]] = []
    for pause_s, amount in steps:
        clock.now_s += pause_s
        if amount <= per_minute and bucket.wait_s(amount) == 0:
            bucket.use(amount)
            used.append((clock.now_s, amount))
        assert -1e-6 <= bucket.level <= per_minute
    for first in range(len(used)):
        total = 0
        for now_s, amount in used[first:]:
            total += amount
            assert total <= per_minute * (1 + (now_s - used[first][0]) / 60) + 1e-6


@given(st.integers(1, 1000), st.integers(0, 5000), st.integers(1, 1000))
def test_after_the_wait_the_amount_is_available(per_minute: int, debt: int, amount: int) -> None:
    clock = Clock()
    bucket = TokenBucket(per_minute, clock)
    bucket.use(debt)
    clock.now_s += bucket.wait_s(amount) + 1e-6
    assert bucket.level >= min(amount, per_minute) - 1e-3


@given(st.integers(1, 100), st.integers(1, 100), st.integers(0, 200))
def test_resized_bucket_keeps_what_was_used(before: int, after: int, used: int) -> None:
    bucket = TokenBucket(before, Clock())
    bucket.use(used)
    bucket.per_minute = after
    assert bucket.level == pytest.approx(after - used)


class LimitsMachine:
    """Runs operations on limits, and checks after each that the counts are consistent."""

    def __init__(self, max_in_flight: int, max_waiting: int) -> None:
        self.limits = Limits(max_in_flight, max_waiting, clock=Clock())
        self.arrived: list[Ticket] = []
        self.started: list[Ticket] = []

    def admit(self) -> None:
        is_full = len(self.arrived) == self.limits.max_in_flight + self.limits.max_waiting
        try:
            self.arrived.append(self.limits.admit(make_key()))
            assert not is_full
        except ApiError as error:
            assert (is_full, error.status, error.reason) == (True, 429, "queue_full")

    def release(self, choice: int) -> None:
        if self.arrived:
            ticket = self.arrived.pop(choice % len(self.arrived))
            ticket.release()
            ticket.release()

    def check(self) -> None:
        running = [each for each in self.arrived if not each.is_waiting]
        waiting = [each for each in self.arrived if each.is_waiting]
        assert len(running) == self.limits.num_in_flight <= self.limits.max_in_flight
        assert len(waiting) == self.limits.num_waiting <= self.limits.max_waiting
        assert not waiting or len(running) == self.limits.max_in_flight
        # First in, first out: no request overtakes another.
        assert self.arrived == running + waiting


@settings(deadline=None)
@given(
    st.integers(1, 4),
    st.integers(0, 4),
    st.lists(st.one_of(st.none(), st.integers(0, 20)), max_size=80),
)
def test_queue_is_bounded_and_in_order(
    max_in_flight: int, max_waiting: int, steps: list[int | None]
) -> None:
    async def run() -> None:
        machine = LimitsMachine(max_in_flight, max_waiting)
        for step in steps:
            if step is None:
                machine.admit()
            else:
                machine.release(step)
            machine.check()
        while machine.arrived:
            machine.release(0)
            machine.check()
        assert (machine.limits.num_in_flight, machine.limits.num_waiting) == (0, 0)

    asyncio.run(run())


def test_cancelled_wait_leaves_the_queue() -> None:
    async def run() -> None:
        limits = Limits(1, 5)
        first, second, third = (limits.admit(None) for _ in range(3))
        waiting = asyncio.create_task(second.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        second.release()
        first.release()
        await asyncio.wait_for(third.wait(), 5)
        assert (limits.num_in_flight, limits.num_waiting) == (1, 0)

    asyncio.run(run())


def test_concurrency_of_a_key_counts_waiting_requests() -> None:
    async def run() -> None:
        limits = Limits(1, 5)
        key = make_key(concurrency=2)
        tickets = [limits.admit(key), limits.admit(key)]
        with pytest.raises(ApiError) as caught:
            limits.admit(key)
        assert (caught.value.status, caught.value.reason) == (429, "concurrency")
        limits.admit(None)
        tickets[0].release()
        limits.admit(key)

    asyncio.run(run())


def test_concurrency_of_a_key_counts_sequences() -> None:
    limits, key = Limits(9, 9), make_key(concurrency=4)
    ticket = limits.admit(key, 3)
    with pytest.raises(ApiError, match="is limited to 4 concurrent sequences"):
        limits.admit(key, 2)
    limits.admit(key, 1)
    ticket.release()
    limits.admit(key, 3)
    with pytest.raises(ApiError, match="The request generates 5 sequences") as caught:
        limits.admit(key, 5)
    assert caught.value.headers() == {"x-should-retry": "false"}


def test_generated_tokens_count_when_they_arrive() -> None:
    clock = Clock()
    limits = Limits(9, 9, clock=clock)
    key = make_key(tokens_per_minute=60)
    ticket = admit_prompt(limits, key, 50)
    ticket.use_tokens(40)
    ticket.release()
    with pytest.raises(ApiError) as caught:
        limits.admit(key)
    # 30 tokens are missing for an empty bucket, and one for the request.
    assert caught.value.headers()["retry-after"] == "31"
    clock.now_s += 31
    admit_prompt(limits, key, 1)


def test_a_rejected_request_does_not_count() -> None:
    limits = Limits(9, 9, clock=Clock())
    key = make_key(requests_per_minute=2, tokens_per_minute=100)
    admit_prompt(limits, key, 60)
    for _ in range(5):
        ticket = limits.admit(key)
        with pytest.raises(ApiError, match="tokens per minute") as caught:
            ticket.charge_prompt(60)
        # The error has the headers, so the ticket must not add them again.
        assert caught.value.headers()["x-ratelimit-remaining-requests"] == "1"
        assert ticket.headers == []
        ticket.release()
    headers = dict(admit_prompt(limits, key, 40).headers)
    assert headers[b"x-ratelimit-remaining-requests"] == b"0"
    assert headers[b"x-ratelimit-remaining-tokens"] == b"0"
    assert headers[b"x-ratelimit-limit-tokens"] == b"100"
    assert headers[b"x-ratelimit-reset-requests"] == b"1m0s"


def test_a_prompt_that_can_never_run_is_not_retried() -> None:
    limits = Limits(9, 9, clock=Clock())
    with pytest.raises(ApiError, match="Shorten the prompt") as caught:
        admit_prompt(limits, make_key(tokens_per_minute=100), 101)
    assert caught.value.headers() == {"x-should-retry": "false"}


def test_errors_of_a_limit_of_one_are_singular() -> None:
    limits = Limits(9, 9, clock=Clock())
    with pytest.raises(ApiError, match="is limited to 1 token per minute"):
        admit_prompt(limits, make_key(tokens_per_minute=1), 2)
    key = make_key(requests_per_minute=1)
    limits.admit(key)
    with pytest.raises(ApiError, match="is limited to 1 request per minute"):
        limits.admit(key)


def test_queue_is_divided_by_the_processes() -> None:
    limits = Limits(10, 8, num_processes=4, clock=Clock())
    assert (limits.max_in_flight, limits.max_waiting) == (2, 2)


def test_processes_share_the_limits_of_a_key(tmp_path: Path) -> None:
    clock = Clock()
    first, second = (
        Limits(10, 8, 2, clock, UsageTable(tmp_path / "usage", index, 2)) for index in (0, 1)
    )
    key = make_key(requests_per_minute=3, tokens_per_minute=100, concurrency=2)
    ticket = admit_prompt(first, key, 40)
    assert dict(admit_prompt(second, key, 10).headers)[b"x-ratelimit-remaining-tokens"] == b"50"
    for limits in (first, second):
        with pytest.raises(ApiError, match="2 concurrent sequences"):
            limits.admit(key)
    ticket.use_tokens(20)
    ticket.release()
    rejected = second.admit(key)
    with pytest.raises(ApiError, match="100 tokens per minute"):
        rejected.charge_prompt(31)
    rejected.release()
    admit_prompt(second, key, 30).release()
    with pytest.raises(ApiError, match="3 requests per minute"):
        first.admit(key)


def test_requests_of_a_restarted_process_do_not_count(tmp_path: Path) -> None:
    file, key = tmp_path / "usage", make_key(concurrency=1)
    Limits(10, 8, 2, Clock(), UsageTable(file, 0, 2)).admit(key)
    restarted = Limits(10, 8, 2, Clock(), UsageTable(file, 0, 2))
    restarted.admit(key)
    with pytest.raises(ApiError, match="1 concurrent sequence"):
        Limits(10, 8, 2, Clock(), UsageTable(file, 1, 2)).admit(key)


def test_changed_limits_apply_to_the_next_request() -> None:
    clock = Clock()
    limits = Limits(9, 9, clock=clock)
    limits.admit(make_key(requests_per_minute=1))
    with pytest.raises(ApiError):
        limits.admit(make_key(requests_per_minute=1))
    limits.admit(make_key(requests_per_minute=2))
    with pytest.raises(ApiError):
        limits.admit(make_key(requests_per_minute=2))
    limits.admit(make_key())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.0201, "21ms"), (1, "1s"), (30.25, "30.25s"), (60, "1m0s"), (360.5, "6m0.5s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
