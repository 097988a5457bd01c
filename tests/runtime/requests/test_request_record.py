"""Counters, times and log lines of requests, on a clock that the test sets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.fakes import triton_utils
from tests.fakes.triton_utils import Request
from trtllm_serve_cli.runtime.engine import InvalidRequest
from trtllm_serve_cli.runtime.requests.request_record import (
    RequestLedger,
    RequestRecord,
    ResponseRecorder,
)
from trtllm_serve_cli.runtime.telemetry.counters import Series
from trtllm_serve_cli.runtime.telemetry.families import (
    DURATION,
    GENERATION_TOKENS,
    ITL,
    PROMPT_TOKENS,
    REQUESTS,
    TTFT,
)

MS = 1_000_000
PARENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


class Clock:
    def __init__(self) -> None:
        self.ns = 1

    def __call__(self) -> int:
        return self.ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(clock: Clock) -> Iterator[RequestLedger]:
    ledger = RequestLedger(triton_utils, "demo", "1", environ={}, now_ns=clock)
    yield ledger
    ledger.close()


def counts(ledger: RequestLedger) -> dict[Series, float]:
    return {series: count for series, count in ledger.counters.read().items() if count}


def test_counts_and_times_a_request(ledger: RequestLedger, clock: Clock) -> None:
    record = ledger.open_record(Request({}, "a"))
    record.num_prompt_tokens = 7
    for at_ms, number in ((20, 1), (60, 1), (62, 2)):
        clock.ns = 1 + at_ms * MS
        record.add_tokens((0, 0), number)
    record.reached_limit = True
    record.complete()
    read = counts(ledger)
    assert read[Series(REQUESTS.name, "length")] == 1
    assert (read[Series(PROMPT_TOKENS.name)], read[Series(GENERATION_TOKENS.name)]) == (7, 4)
    assert read[Series(f"{TTFT.name}_sum")] == 0.02
    assert (read[Series(f"{ITL.name}_count")], read[Series(f"{ITL.name}_sum")]) == (2, 0.042)
    assert read[Series(f"{DURATION.name}_sum")] == 0.062


def test_measures_latency_per_sequence(ledger: RequestLedger, clock: Clock) -> None:
    record = ledger.open_record(Request({}, "a"))
    for at_ms, sequence in ((20, 0), (21, 1), (30, 0), (31, 1)):
        clock.ns = 1 + at_ms * MS
        record.add_tokens((0, sequence), 1)
    record.complete()
    assert counts(ledger)[Series(f"{ITL.name}_sum")] == 0.02


def test_only_the_first_outcome_counts(ledger: RequestLedger) -> None:
    record = ledger.open_record(Request({}, "a"))
    record.end("cancelled")
    record.complete()
    ended = [series for series in counts(ledger) if series.name == REQUESTS.name]
    assert ended == [Series(REQUESTS.name, "cancelled")]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(InvalidRequest("too long"), "rejected"), (RuntimeError("gone"), "error")],
    ids=["invalid request", "server error"],
)
def test_request_that_does_not_run_has_no_duration(
    ledger: RequestLedger, error: Exception, outcome: str
) -> None:
    ledger.open_record(Request({}, "a")).reject(error)
    read = counts(ledger)
    assert read[Series(REQUESTS.name, outcome)] == 1
    assert Series(f"{DURATION.name}_count") not in read


def logged(
    capsys: pytest.CaptureFixture[str], environ: dict[str, str], request_id: str = "r-1"
) -> str:
    """Return the log of a request."""
    clock = Clock()
    ledger = RequestLedger(triton_utils, "demo", "1", environ=environ, now_ns=clock)
    record = ledger.open_record(Request({}, request_id))
    record.num_prompt_tokens, record.prompt = 3, "a secret"
    clock.ns += 5 * MS
    record.add_tokens((0, 0), 1)
    clock.ns += 5 * MS
    record.complete()
    ledger.close()
    return capsys.readouterr().err


def test_logs_nothing_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert logged(capsys, {}) == ""


def test_logs_a_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TLLM_LOG_FORMAT", "json")
    line = json.loads(logged(capsys, {"TLLM_LOG_REQUESTS": "yes"}))
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info", "message": "request", "id": "r-1", "model": "demo", "outcome": "stop",
        "input_tokens": 3, "output_tokens": 1, "ttft_ms": 5.0, "duration_ms": 10.0,
    }  # fmt: skip


def test_logs_the_prompt_only_if_enabled(capsys: pytest.CaptureFixture[str]) -> None:
    assert "secret" not in logged(capsys, {"TLLM_LOG_REQUESTS": "yes"})
    assert 'prompt="a secret"' in logged(capsys, {"TLLM_LOG_REQUESTS": "prompts"})


def test_logged_request_always_has_an_id(capsys: pytest.CaptureFixture[str]) -> None:
    line = logged(capsys, {"TLLM_LOG_REQUESTS": "yes"}, request_id="")
    assert re.search(r" id=[0-9a-f]{32} ", line)


def test_traced_request_has_spans(ledger: RequestLedger, clock: Clock) -> None:
    record = RequestRecord(ledger, "r-1", PARENT, clock.ns)
    record.submitted_ns = 3 * MS
    clock.ns = 5 * MS
    record.add_tokens((0, 0), 1)
    (span,) = record.spans(9 * MS, "")
    assert (span.name, span.start_ns, span.end_ns) == ("engine", 3 * MS, 5 * MS)
    assert span.attributes["tllm.request_id"] == "r-1"
    assert span.events == {"first token": 5 * MS}


def test_request_that_did_not_run_or_is_not_traced_has_no_spans(ledger: RequestLedger) -> None:
    assert RequestRecord(ledger, "r-1", PARENT, 1).spans(2, "refused") == []
    record = RequestRecord(ledger, "r-1", "", 1)
    record.submitted_ns = 1
    assert record.spans(2, "") == []


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


def test_counts_whole_responses_without_their_prompts(ledger: RequestLedger) -> None:
    record = ledger.open_record(Request({}, "a"))
    recorder = ResponseRecorder(record, INPUTS)
    recorder.record(outputs([5, 6, 8, 0], row=0, length=3))
    recorder.record(outputs([8, 9], row=1, length=2))
    assert (record.num_prompt_tokens, record.num_tokens, record.reached_limit) == (5, 3, True)
    read = counts(ledger)
    assert read[Series(GENERATION_TOKENS.name)] == 3
    # The times of the tokens are unknown.
    assert not any(series.name.startswith((TTFT.name, ITL.name)) for series in read)


def test_counts_streamed_tokens_that_repeat_the_prompt(ledger: RequestLedger) -> None:
    record = ledger.open_record(Request({}, "a"))
    recorder = ResponseRecorder(record, {**INPUTS, "streaming": np.array([[True]])})
    for token in (5, 6):
        recorder.record(outputs([token], row=0, length=1))
    assert (record.num_tokens, record.reached_limit) == (2, True)
