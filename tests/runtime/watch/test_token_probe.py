"""Requests for a token from an engine that does not write heartbeats."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

import pytest

from tests.fakes.triton.server import FakeTriton
from tests.samples.metrics_pages import PAGE
from tests.waiting import wait_until
from trtllm_serve_cli.runtime.watch.liveness import HangLimits
from trtllm_serve_cli.runtime.watch.token_probe import TokenProbe, count_steps, request_token

LIMITS = HangLimits()


@dataclass
class Engine:
    """An engine that generates a token only after `release` is set."""

    now_s: float = 0.0
    num_steps: int = 0
    num_requests: int = 0
    release: threading.Event = field(default_factory=threading.Event)

    def send(self) -> None:
        self.num_requests += 1
        assert self.release.wait(60)

    def probe(self) -> TokenProbe:
        return TokenProbe(
            "m", self.send, lambda: self.num_steps, idle_s=30.0, clock=lambda: self.now_s
        )


def read_mark(probe: TokenProbe) -> Hashable:
    sign = probe.read_sign(LIMITS, 1)
    return None if sign is None else sign.mark


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine()
    yield engine
    engine.release.set()


def test_no_token_is_requested_while_the_engine_steps(engine: Engine) -> None:
    probe = engine.probe()
    for _ in range(10):
        engine.now_s += 30.0
        engine.num_steps += 1
        assert read_mark(probe) is None
    assert engine.num_requests == 0


def test_idle_engine_is_requested_to_generate_a_token(engine: Engine) -> None:
    probe = engine.probe()
    engine.now_s = 29.0
    assert (read_mark(probe), engine.num_requests) == (None, 0)
    engine.now_s = 30.0
    assert read_mark(probe) is None
    wait_until(lambda: engine.num_requests == 1)
    assert read_mark(probe) == (0, False)
    engine.release.set()
    wait_until(lambda: read_mark(probe) is None)


def test_steps_of_other_requests_are_signs_of_life_while_the_token_waits(engine: Engine) -> None:
    probe = engine.probe()
    engine.now_s = 30.0
    read_mark(probe)
    marks = []
    for _ in range(3):
        engine.now_s += 5.0
        engine.num_steps += 7
        marks.append(read_mark(probe))
    assert marks == [(7, False), (14, False), (21, False)]
    engine.now_s += 5.0
    assert read_mark(probe) == (21, False)


def test_token_is_requested_over_http_and_an_error_is_a_response() -> None:
    inputs = '{"text_input": "Hello", "max_tokens": 1}'
    with FakeTriton() as triton:
        for model in ("m", "nope"):
            request_token(triton.endpoint.http, model, inputs, 60.0)
    assert [(each.model, each.inputs) for each in triton.requests] == [
        ("m", {"text_input": "Hello", "max_tokens": 1}),
        ("nope", {"text_input": "Hello", "max_tokens": 1}),
    ]
    request_token(triton.endpoint.http, "m", inputs, 60.0)


def test_steps_are_counted_of_all_engines_or_of_one_model() -> None:
    other = PAGE.replace('model="tensorrt_llm"', 'model="other"')
    with FakeTriton(metrics_pages=[PAGE + other]) as triton:
        address = triton.endpoint.metrics
        assert count_steps(address) == 2 * 123
        assert [count_steps(address, parts) for parts in (("other",), ("nope",))] == [123, 0]
    assert count_steps(address) == 0
