from __future__ import annotations

import threading

import pytest

from trtllm_serve_cli.sources.parallel import Stopped, run_parallel


def test_runs_in_parallel_and_ticks():
    both = threading.Barrier(2)
    ticks: list[None] = []
    run_parallel(
        lambda item, stop: both.wait(60) and None,
        ["a", "b"],
        max_workers=2,
        tick=lambda: ticks.append(None),
    )
    assert ticks


def test_first_failure_stops_other_workers():
    stopped = threading.Event()

    def work(item: str, stop: threading.Event) -> None:
        if item == "broken":
            raise ValueError(item)
        assert stop.wait(60)
        stopped.set()
        raise Stopped

    with pytest.raises(ValueError, match="broken"):
        run_parallel(work, ["long", "broken"], max_workers=2, tick=lambda: None)
    assert stopped.is_set()


def test_interrupt_stops_all_workers():
    def work(item: int, stop: threading.Event) -> None:
        assert stop.wait(60)

    def tick() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_parallel(work, range(9), max_workers=2, tick=tick)
