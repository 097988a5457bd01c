"""The number of threads, for CPU limits of containers and for processors with several threads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.samples.checkpoints import write_files
from trtllm_serve_cli.runtime.engines.openvino import threads
from trtllm_serve_cli.runtime.engines.openvino.threads import (
    choose_num_threads,
    count_physical_cores,
    thread_properties,
)


@pytest.mark.parametrize(
    ("cpu_limit", "num_cores", "num_threads"),
    [(None, 8, 0), (8.0, 8, 0), (16.0, 8, 0), (4.0, 8, 4), (1.5, 8, 2), (0.5, 8, 1), (0.2, 1, 1)],
)
def test_threads_do_not_exceed_the_cpu_limit(
    cpu_limit: float | None, num_cores: int, num_threads: int
) -> None:
    assert choose_num_threads(cpu_limit, num_cores) == num_threads


def test_limited_threads_are_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    limited = {"INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": False}
    assert thread_properties(1) == limited
    monkeypatch.setattr(threads, "read_cpu_limit", lambda: 0.5)
    assert thread_properties(0) == limited
    monkeypatch.setattr(threads, "read_cpu_limit", lambda: None)
    assert thread_properties(0) == {}


def test_logical_processors_of_a_core_count_once(tmp_path: Path) -> None:
    numbers = os.sched_getaffinity(0)
    siblings = {f"cpu{number}/topology/thread_siblings_list": b"0,1\n" for number in numbers}
    assert count_physical_cores(write_files(tmp_path, siblings)) == 1
    assert count_physical_cores(tmp_path / "none") == len(numbers)
