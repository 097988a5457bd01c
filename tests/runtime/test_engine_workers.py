"""Engines with stand-ins of their packages in a worker process."""

from __future__ import annotations

import queue
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes import stand_in_worker
from tests.waiting import take_whole
from trtllm_serve_cli.runtime.engine import EngineLimits, SequenceUpdate
from trtllm_serve_cli.runtime.worker.worker_process import WorkerFailed, WorkerProcess

COMMAND = (sys.executable, stand_in_worker.__file__)
CONFIG: dict[str, Any] = {"max_seq_len": 100, "vocab_size": 1000, "gpu_device_ids": []}
# Engine kind -> its arguments, and its error when the engine has failed.
ARGUMENTS = {
    "pytorch": {"model": "/m", "max_batch_size": 4},
    "vllm": {"model": "/m", "max_num_seqs": 4},
}
FAILURES = {
    "pytorch": "RuntimeError: the executor is gone",
    "vllm": "EngineDeadError: the core has failed",
}
_TIMEOUT_S = 60.0
both = pytest.mark.parametrize("kind", ARGUMENTS)


@contextmanager
def worker(kind: str, **options: Any) -> Iterator[WorkerProcess]:
    config = {**CONFIG, "llm": ARGUMENTS[kind]}
    process = WorkerProcess(kind, config, command=COMMAND, first_backoff_s=0.01, **options)
    process.start()
    try:
        assert process.limits == EngineLimits(100, 1, 1000)
        yield process
    finally:
        process.close()


@both
def test_sends_tokens_over_the_socket(kind: str) -> None:
    updates: queue.Queue[SequenceUpdate] = queue.Queue()
    with worker(kind) as process:
        number = process.submit({"input_ids": (5, 10), "max_new_tokens": 2}, updates.put)
        update = take_whole(updates)
    assert replace(update, prompt=None) == SequenceUpdate(number, 0, (11, 12), "length")


@both
def test_restarts_a_worker_whose_engine_failed(kind: str) -> None:
    states: queue.Queue[tuple[bool, int]] = queue.Queue()
    updates: queue.Queue[SequenceUpdate] = queue.Queue()
    with worker(kind, on_state=lambda *state: states.put(state)) as process:
        process.submit({"input_ids": (992,), "max_new_tokens": 2}, updates.put)
        error = updates.get(timeout=_TIMEOUT_S).error
        changes = [states.get(timeout=_TIMEOUT_S) for _ in range(3)]
    assert error == (
        f"the engine failed ({FAILURES[kind]}) and is being restarted; retry the request"
    )
    assert changes == [(True, 0), (False, 0), (True, 1)]


def test_unknown_argument_prevents_the_start() -> None:
    config = {**CONFIG, "llm": {"model": "/m", "kv_cache_dtype": "fp8"}}
    with pytest.raises(WorkerFailed, match="does not support the arguments kv_cache_dtype"):
        WorkerProcess("pytorch", config, command=COMMAND).start()
