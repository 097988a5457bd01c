"""An engine that executes the command in the prompt's first token, and a worker that runs it.

    python3 scripted_worker.py --engine scripted --fd 5 --config '{}'

With `{"fails": "..."}` as the configuration, the engine fails to load.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])

from trtllm_serve_cli.runtime.engine import (
    EngineLimits,
    EngineStats,
    GenerationRequest,
    InvalidRequest,
    SequenceUpdate,
)
from trtllm_serve_cli.runtime.worker.worker_main import main

# Count up, one token a step: 10, 11, 12 … in the first sequence, 20, 21, 22 … in the next.
COUNT = 1
# Run without tokens until cancelled.
HANG = 2
# Fail in the first step.
FAIL = 3
# Kill the worker.
DIE = 4
# Generate one token: the number of cancelled requests.
COUNT_CANCELLED = 5
# Be rejected by the engine.
REJECT = 6
# Make the engine raise an unexpected error.
RAISE = 7
# Make the first step raise.
BREAK = 8

LIMITS = EngineLimits(max_seq_len=4096, max_beam_width=4, vocab_size=100)


class ScriptedEngine:
    limits = LIMITS

    def __init__(self) -> None:
        self._running: dict[int, tuple[GenerationRequest, int]] = {}
        self._num_cancelled = 0

    def submit(self, request: GenerationRequest) -> None:
        if request.input_ids[0] == REJECT:
            raise InvalidRequest("the script rejects it")
        if request.lora_name is not None:
            raise InvalidRequest(f"the script has no adapter {request.lora_name}")
        if request.input_ids[0] == RAISE:
            raise TypeError("the script is wrong")
        self._running[request.id] = (request, 0)

    def cancel(self, request_id: int) -> None:
        if self._running.pop(request_id, None) is not None:
            self._num_cancelled += 1

    def has_work(self) -> bool:
        return any(request.input_ids[0] != HANG for request, _ in self._running.values())

    def step(self) -> list[SequenceUpdate]:
        updates = []
        for request, num_steps in list(self._running.values()):
            updates += self._step(request, num_steps)
        return updates

    def close(self) -> None:
        pass

    def stats(self) -> EngineStats:
        return EngineStats(active_requests=len(self._running), iteration=self._num_cancelled)

    def _step(self, request: GenerationRequest, num_steps: int) -> list[SequenceUpdate]:
        command = request.input_ids[0]
        if command == HANG:
            return []
        if command == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        if command == BREAK:
            raise RuntimeError("the script breaks")
        if command == COUNT:
            return self._count(request, num_steps)
        del self._running[request.id]
        if command == FAIL:
            return [SequenceUpdate(request.id, error="the script fails it")]
        return [SequenceUpdate(request.id, 0, (self._num_cancelled,), "stop")]

    def _count(self, request: GenerationRequest, num_steps: int) -> list[SequenceUpdate]:
        is_last = num_steps + 1 == request.max_new_tokens
        self._running[request.id] = (request, num_steps + 1)
        if is_last:
            del self._running[request.id]
        has_log_probs = request.return_log_probs
        return [
            SequenceUpdate(
                request.id,
                sequence,
                token_ids=(10 * (sequence + 1) + num_steps,),
                finish_reason="length" if is_last else None,
                log_probs=(-0.5,) if has_log_probs else (),
                cum_log_prob=-0.5 * (num_steps + 1) if has_log_probs else None,
            )
            for sequence in range(request.num_return_sequences)
        ]


def load(kind: str, config: dict[str, Any], on_imported: Callable[[], None]) -> ScriptedEngine:
    if "fails" in config:
        raise RuntimeError(config["fails"])
    return ScriptedEngine()


if __name__ == "__main__":
    main(load)
