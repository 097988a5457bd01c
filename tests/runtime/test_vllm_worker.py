"""vLLM's engine in its worker, a process of its own."""

from __future__ import annotations

import queue
import sys
from pathlib import Path
from typing import Any

from tests.waiting import take_whole
from trtllm_serve_cli.runtime.engine import EngineLimits, SequenceUpdate
from trtllm_serve_cli.runtime.worker_process import WorkerProcess

COMMAND = (sys.executable, str(Path(__file__).with_name("stand_in_worker.py")))
CONFIG: dict[str, Any] = {
    "llm": {"model": "/m", "max_num_seqs": 4},
    "max_seq_len": 100,
    "vocab_size": 1000,
    "gpu_device_ids": [],
}
_TIMEOUT_S = 10.0


def test_a_worker_whose_core_is_gone_is_started_again() -> None:
    states: queue.Queue[tuple[bool, int]] = queue.Queue()
    updates: queue.Queue[SequenceUpdate] = queue.Queue()
    process = WorkerProcess(
        "vllm",
        CONFIG,
        command=COMMAND,
        first_backoff_s=0.01,
        on_state=lambda *state: states.put(state),
    )
    process.start()
    try:
        assert process.limits == EngineLimits(100, 1, 1000)
        number = process.submit({"input_ids": (5, 10), "max_new_tokens": 2}, updates.put)
        told = take_whole(updates)
        process.submit({"input_ids": (992,), "max_new_tokens": 2}, updates.put)
        error = updates.get(timeout=_TIMEOUT_S).error
        seen = [states.get(timeout=_TIMEOUT_S) for _ in range(3)]
    finally:
        process.close()
    assert told == SequenceUpdate(number, 0, (11, 12), "length")
    assert error == (
        "the engine failed (EngineDeadError: the core has failed); it is being restarted, send "
        "the request again"
    )
    assert seen == [(True, 0), (False, 0), (True, 1)]
