"""Requests for a token from an engine that does not write heartbeats."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.waiting import wait_until
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.errors import RequestFailed
from trtllm_serve_cli.launch.supervisor.hangs.token_probe import TokenProbe


@dataclass
class Engine:
    """An engine that generates a token only after `release` is set, or fails."""

    now_s: float = 0.0
    num_steps: int = 0
    fails: bool = False
    release: threading.Event = field(default_factory=threading.Event)
    requests: list[str] = field(default_factory=list)

    def send(self, endpoint: Endpoint, model: str, timeout_s: float, /) -> None:
        self.requests.append(model)
        assert self.release.wait(60)
        if self.fails:
            raise RequestFailed("m rejected the request.")

    def probe(self) -> TokenProbe:
        return TokenProbe(
            Endpoint(),
            "m",
            ("m",),
            idle_s=30.0,
            timeout_s=60.0,
            clock=lambda: self.now_s,
            send=self.send,
            count=lambda endpoint, parts: self.num_steps,
        )


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
        assert probe.read() is None
    assert engine.requests == []


def test_idle_engine_is_requested_to_generate_a_token(engine: Engine) -> None:
    probe = engine.probe()
    engine.now_s = 29.0
    assert (probe.read(), engine.requests) == (None, [])
    engine.now_s = 30.0
    assert probe.read() is None
    wait_until(lambda: engine.requests == ["m"])
    assert probe.read() == (0, 0)
    engine.release.set()
    wait_until(lambda: probe.read() is None)


def test_steps_of_other_requests_are_signs_of_life_while_the_token_waits(engine: Engine) -> None:
    probe = engine.probe()
    engine.now_s = 30.0
    probe.read()
    marks = []
    for _ in range(3):
        engine.now_s += 5.0
        engine.num_steps += 7
        marks.append(probe.read())
    assert marks == [(7, 0), (14, 0), (21, 0)]
    engine.now_s += 5.0
    assert probe.read() == (21, 0)


def test_error_is_a_sign_of_life(engine: Engine) -> None:
    engine.fails = True
    engine.release.set()
    probe = engine.probe()
    engine.now_s = 30.0
    probe.read()
    wait_until(lambda: probe.read() is None)
    engine.now_s = 60.0
    probe.read()
    wait_until(lambda: engine.requests == ["m", "m"])
