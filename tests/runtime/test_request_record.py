"""What is counted, timed and logged of a request, on a clock that the test moves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pytest

from tests.runtime import fake_triton_utils
from trtllm_serve_cli.runtime.engine import InvalidRequest
from trtllm_serve_cli.runtime.request_log import RequestLog
from trtllm_serve_cli.runtime.request_record import AnswerFollower, RequestLedger
from trtllm_serve_cli.runtime.tally import (
    DURATION,
    GENERATION_TOKENS,
    ITL,
    PROMPT_TOKENS,
    REQUESTS,
    TTFT,
    Series,
)

MS = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.ns = 1

    def __call__(self) -> int:
        return self.ns


class Written(RequestLog):
    """A log that keeps what it is told."""

    def __init__(self, **how: Any) -> None:
        super().__init__(is_on=True, is_json=True, **how)
        object.__setattr__(self, "facts", [])

    facts: list[dict[str, Any]]

    def write(self, facts: Any) -> None:
        self.facts.append(dict(facts))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(clock: Clock) -> Iterator[RequestLedger]:
    made = RequestLedger(fake_triton_utils, "demo", "1", RequestLog(), now_ns=clock)
    yield made
    made.close()


def counts(ledger: RequestLedger) -> dict[Series, float]:
    return {series: count for series, count in ledger.tally.read().items() if count}


def test_a_request_is_counted_and_timed(ledger: RequestLedger, clock: Clock) -> None:
    record = ledger.open_record("a")
    record.num_prompt_tokens = 7
    for at_ms, number in ((20, 1), (60, 1), (62, 2)):
        clock.ns = 1 + at_ms * MS
        record.note_tokens((0, 0), number)
    record.was_cut = True
    record.complete()
    read = counts(ledger)
    assert read[Series(REQUESTS, "length")] == 1
    assert (read[Series(PROMPT_TOKENS)], read[Series(GENERATION_TOKENS)]) == (7, 4)
    assert read[Series(f"{TTFT}_sum")] == 0.02
    assert (read[Series(f"{ITL}_count")], read[Series(f"{ITL}_sum")]) == (2, 0.042)
    assert read[Series(f"{DURATION}_sum")] == 0.062


def test_sequences_have_gaps_of_their_own(ledger: RequestLedger, clock: Clock) -> None:
    record = ledger.open_record("a")
    for at_ms, sequence in ((20, 0), (21, 1), (30, 0), (31, 1)):
        clock.ns = 1 + at_ms * MS
        record.note_tokens((0, sequence), 1)
    record.complete()
    assert counts(ledger)[Series(f"{ITL}_sum")] == 0.02


def test_only_the_first_end_counts(ledger: RequestLedger) -> None:
    record = ledger.open_record("a")
    record.end("cancelled")
    record.complete()
    ended = [series for series in counts(ledger) if series.family == REQUESTS]
    assert ended == [Series(REQUESTS, "cancelled")]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(InvalidRequest("too long"), "rejected"), (RuntimeError("gone"), "error")],
    ids=["its own fault", "ours"],
)
def test_what_does_not_run_has_no_times(
    ledger: RequestLedger, error: Exception, outcome: str
) -> None:
    ledger.open_record("a").refuse(error)
    read = counts(ledger)
    assert read[Series(REQUESTS, outcome)] == 1
    assert Series(f"{DURATION}_count") not in read


def ask(log: Written, request_id: str = "r-1") -> dict[str, Any]:
    clock = Clock()
    ledger = RequestLedger(fake_triton_utils, "demo", "1", log, now_ns=clock)
    record = ledger.open_record(request_id)
    record.num_prompt_tokens, record.prompt = 3, "a secret"
    clock.ns += 5 * MS
    record.note_tokens((0, 0), 1)
    clock.ns += 5 * MS
    record.complete()
    ledger.close()
    (facts,) = log.facts
    return facts


def test_the_line_of_a_request() -> None:
    assert ask(Written()) == {
        "id": "r-1", "model": "demo", "outcome": "stop", "input_tokens": 3, "output_tokens": 1,
        "ttft_ms": 5.0, "duration_ms": 10.0,
    }  # fmt: skip


def test_the_prompt_is_in_it_only_when_asked_for() -> None:
    assert ask(Written(has_prompts=True))["prompt"] == "a secret"


def test_a_request_without_an_id_gets_one() -> None:
    assert len(ask(Written(), "")["id"]) == 32


AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, timezone.utc)


def test_a_line_as_json() -> None:
    line = RequestLog(is_json=True).render({"id": "é", "ttft_ms": None}, AT)
    assert json.loads(line) == {
        "time": "2026-01-02T03:04:05.678Z", "level": "info", "event": "request",
        "id": "é", "ttft_ms": None,
    }  # fmt: skip


def test_a_line_as_text_stays_one_line() -> None:
    line = RequestLog().render({"id": "a", "error": "two\nlines", "output_tokens": 3}, AT)
    assert line == 'I 2026-01-02T03:04:05.678Z request id=a error="two\\nlines" output_tokens=3'


@pytest.mark.parametrize(
    ("environ", "log"),
    [
        ({}, RequestLog()),
        ({"TLLM_LOG_FORMAT": "json"}, RequestLog(is_json=True)),
        ({"TLLM_LOG_REQUESTS": "yes"}, RequestLog(is_on=True)),
        ({"TLLM_LOG_REQUESTS": "prompts"}, RequestLog(is_on=True, has_prompts=True)),
    ],
)
def test_the_environment_says_what_is_logged(environ: dict[str, str], log: RequestLog) -> None:
    assert RequestLog.of(environ) == log


INPUTS = {
    "input_ids": np.array([[5, 6, 0], [5, 6, 7]]),
    "input_lengths": np.array([[2], [3]]),
    "request_output_len": np.array([[2], [2]]),
}


def outputs(ids: list[int], row: int, length: int) -> dict[str, Any]:
    return {
        "output_ids": np.array([[ids]]),
        "sequence_length": np.array([[length]]),
        "batch_index": np.array([[row]]),
        "sequence_index": np.array([[0]]),
    }


def test_whole_answers_of_a_model_are_noted_without_their_prompts(ledger: RequestLedger) -> None:
    record = ledger.open_record("a")
    follower = AnswerFollower(record, INPUTS)
    follower.note(outputs([5, 6, 8, 0], row=0, length=3))
    follower.note(outputs([8, 9], row=1, length=2))
    assert (record.num_prompt_tokens, record.num_tokens, record.was_cut) == (5, 3, True)


def test_a_streamed_token_that_is_the_prompt_again_counts(ledger: RequestLedger) -> None:
    record = ledger.open_record("a")
    follower = AnswerFollower(record, {**INPUTS, "streaming": np.array([[True]])})
    for token in (5, 6):
        follower.note(outputs([token], row=0, length=1))
    assert (record.num_tokens, record.was_cut) == (2, True)
