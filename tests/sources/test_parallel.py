from __future__ import annotations

import threading

import pytest

from trtllm_serve_cli.sources.parallel import Stopped, run_together


def test_work_is_done_at_once_and_watched():
    both = threading.Barrier(2)
    ticks: list[None] = []
    run_together(
        lambda item, stop: both.wait(60) and None,
        ["a", "b"],
        at_once=2,
        tick=lambda: ticks.append(None),
    )
    assert ticks


def test_first_failure_stops_the_others():
    stopped = threading.Event()

    def work(item: str, stop: threading.Event) -> None:
        if item == "broken":
            raise ValueError(item)
        assert stop.wait(60)
        stopped.set()
        raise Stopped

    with pytest.raises(ValueError, match="broken"):
        run_together(work, ["long", "broken"], at_once=2, tick=lambda: None)
    assert stopped.is_set()


def test_ctrl_c_stops_all():
    def work(item: int, stop: threading.Event) -> None:
        assert stop.wait(60)

    def tick() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_together(work, range(9), at_once=2, tick=tick)
