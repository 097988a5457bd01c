"""Find steps of the engine that are slow because of guides.

OpenVINO GenAI (2026.4) computes the tokens that a guide allows while it samples, and the step ends
when all requests have been sampled. If a text can be split in many ways, as with the grammar
`x ::= [a-z]* | x x`, the cost of a token grows with about the cube of the text's length. The check
of guides (grammar_check.py) covers only the first tokens.

The thread that calls the pipeline takes part in inference, but not in sampling. Its CPU time
therefore shows how much inference a step contained. Steps without guides show how long a step with
this much inference takes.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

# How much longer than without guides a step may take, in seconds.
LIMIT_S = 1.0
# How many times longer than expected inference may take, for example on a busy machine.
_TOLERANCE = 4
_NUM_SLOW_STEPS = 2
# The weight of the steps so far when a step without guides is added.
_DECAY = 0.9


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The elapsed time of a step, and the CPU time of the process and of the calling thread."""

    elapsed_s: float
    process_s: float
    thread_s: float

    @property
    def duration_s(self) -> float:
        """The duration without the time in which no thread ran, for example on a busy machine."""
        return min(self.elapsed_s, self.process_s)


class StepClock:
    """Measure one step, from the creation of the clock."""

    def __init__(self) -> None:
        self._start = self._read()

    def stop(self) -> StepTimes:
        return StepTimes(
            *(end - start for start, end in zip(self._start, self._read(), strict=True))
        )

    def _read(self) -> tuple[float, float, float]:
        return time.monotonic(), time.process_time(), time.thread_time()


class StepGuard:
    """Compare steps with guides to steps without guides."""

    def __init__(self) -> None:
        # Until a step without guides has been measured, assume that a step takes as long as the
        # thread's CPU time multiplied by the number of cores.
        self._duration_s, self._thread_s = float(os.cpu_count() or 1), 1.0
        self._num_slow = 0

    def learn(self, times: StepTimes) -> None:
        """Add a step without guides."""
        self._duration_s = _DECAY * self._duration_s + times.duration_s
        self._thread_s = _DECAY * self._thread_s + times.thread_s
        self._num_slow = 0

    def is_slow(self, times: StepTimes, compile_s: float) -> bool:
        """Return whether this step with guides and the one before it were too slow.

        `compile_s` is the time that the step needed to compile new guides.
        """
        inference_s = times.thread_s * self._duration_s / self._thread_s
        limit_s = LIMIT_S + compile_s + _TOLERANCE * inference_s
        self._num_slow = self._num_slow + 1 if times.duration_s > limit_s else 0
        return self._num_slow >= _NUM_SLOW_STEPS
