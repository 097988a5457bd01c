"""The LLM API's engine in its worker, a process of its own."""

from __future__ import annotations

import queue
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import take_whole
from trtllm_serve_cli.runtime.engine import EngineLimits, SequenceUpdate
from trtllm_serve_cli.runtime.worker_process import WorkerFailed, WorkerProcess

COMMAND = (sys.executable, str(Path(__file__).with_name("stand_in_worker.py")))
CONFIG: dict[str, Any] = {
    "llm": {"model": "/m", "max_batch_size": 4},
    "max_seq_len": 100,
    "vocab_size": 1000,
    "gpu_device_ids": [],
}
_TIMEOUT_S = 10.0


@contextmanager
def worker(**options: Any) -> Iterator[WorkerProcess]:
    process = WorkerProcess("pytorch", CONFIG, command=COMMAND, first_backoff_s=0.01, **options)
    process.start()
    assert process.limits == EngineLimits(100, 1, 1000)
    try:
        yield process
    finally:
        process.close()


def test_tokens_cross_the_socket() -> None:
    updates: queue.Queue[SequenceUpdate] = queue.Queue()
    with worker() as process:
        number = process.submit({"input_ids": (5, 10), "max_new_tokens": 2}, updates.put)
        told = take_whole(updates)
    assert told == SequenceUpdate(number, 0, (11, 12), "length")


def test_a_worker_whose_executor_is_gone_is_started_again() -> None:
    states: queue.Queue[tuple[bool, int]] = queue.Queue()
    updates: queue.Queue[SequenceUpdate] = queue.Queue()
    with worker(on_state=lambda *state: states.put(state)) as process:
        process.submit({"input_ids": (992,), "max_new_tokens": 2}, updates.put)
        error = updates.get(timeout=_TIMEOUT_S).error
        told = [states.get(timeout=_TIMEOUT_S) for _ in range(3)]
    assert error == (
        "the engine failed (RuntimeError: the executor is gone); it is being restarted, send the "
        "request again"
    )
    assert told == [(True, 0), (False, 0), (True, 1)]


def test_arguments_that_are_not_taken_are_why_it_does_not_start() -> None:
    config = {**CONFIG, "llm": {"model": "/m", "kv_cache_dtype": "fp8"}}
    with pytest.raises(WorkerFailed, match="kv_cache_dtype: Extra inputs are not permitted"):
        WorkerProcess("pytorch", config, command=COMMAND).start()
