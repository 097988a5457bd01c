"""The duration of a probe, mostly with a clock that the test moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tests.fakes.triton.server import FakeTriton
from tests.waiting import wait_until
from trtllm_serve_cli.runtime.watch.health_probe import HealthProbe, is_ready_on_http
from trtllm_serve_cli.runtime.watch.liveness import HangLimits, Sign
from trtllm_serve_cli.runtime.watch.pod_probe import find_bad, read_signs
from trtllm_serve_cli.runtime.watch.token_probe import TokenRequest
from trtllm_serve_cli.runtime.watch.watch_settings import WatchSettings


class Server:
    """A server whose parts change their marks at these times, in seconds."""

    def __init__(self, changes: Mapping[str, Callable[[float], int]]) -> None:
        self.now_s = 0.0
        self._changes = changes

    def read_signs(self) -> list[Sign]:
        return [
            Sign(part, mark(self.now_s), part, 30.0, 120.0, "worker", 1)
            for part, mark in self._changes.items()
        ]

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s

    def find_hung(self) -> list[str]:
        bad = find_bad(self.read_signs, lambda each: each.is_hang, lambda: self.now_s, self.sleep)
        return [each.sign.part for each in bad]


def test_probe_ends_when_all_parts_have_made_progress() -> None:
    server = Server({"quick": lambda now_s: int(2 * now_s), "slow step": lambda now_s: now_s > 100})
    assert (server.find_hung(), server.now_s) == ([], 100.25)


def test_probe_waits_for_a_silent_part_until_its_time_limit() -> None:
    server = Server({"quick": lambda now_s: int(2 * now_s), "silent": lambda now_s: 0})
    assert (server.find_hung(), server.now_s) == (["silent"], 120.0)


def test_part_that_becomes_silent_during_the_probe_is_found() -> None:
    server = Server({"stops": lambda now_s: now_s > 10, "silent": lambda now_s: now_s > 119})
    assert (server.find_hung(), server.now_s) == ([], 119.25)
    server = Server({"stops": lambda now_s: now_s > 10, "loads": lambda now_s: now_s > 1000})
    assert server.find_hung() == ["loads"]


def test_engine_that_responds_before_the_first_observation_is_ready(tmp_path: Path) -> None:
    token = TokenRequest("m", lambda: None, lambda: 0, time.monotonic)
    wait_until(lambda: token.is_over)
    limits = HangLimits(hang_timeout_s=1.0)
    with FakeTriton() as triton:
        settings = WatchSettings(tmp_path, triton.endpoint.http, triton.endpoint.metrics, limits)
        responds = partial(is_ready_on_http, settings.http)
        health = HealthProbe(settings.http, responds, time.monotonic, period_s=1.0)
        signs = partial(read_signs, settings, health, token)
        assert find_bad(signs, lambda each: each.is_silent) == []
