"""Detect engine steps that are slow because of guides.

When OpenVINO GenAI (2026.4) samples a token for a request with a guide, it first computes the
tokens that the guide allows. A step ends when tokens have been sampled for all requests, so one
slow guide delays all requests. With an ambiguous grammar such as `x ::= [a-z]* | x x`, the cost per
token grows roughly with the cube of the text length. The guide check (grammar_check.py) covers only
the first 32 tokens, so it may accept guides that become too slow later.

The thread that calls the pipeline participates in inference, but not in sampling. Its CPU time
therefore shows how much inference a step contained. Steps without guides show how long a step with
this much inference takes.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

# The time that a step may take in addition to compilation and inference, in seconds.
LIMIT_S = 1.0
# The factor by which inference may exceed its expected duration, for example on a busy machine.
_TOLERANCE = 4
_NUM_SLOW_STEPS = 2
# The factor applied to the weight of all earlier steps when a step without guides is added.
_DECAY = 0.9


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The elapsed time of a step and the CPU times of the process and the calling thread."""

    elapsed_s: float
    process_s: float
    thread_s: float

    @property
    def duration_s(self) -> float:
        """The elapsed time or the CPU time of the process, whichever is shorter.

        On a busy machine, the CPU time excludes the time in which no thread of the process ran.
        """
        return min(self.elapsed_s, self.process_s)


class StepClock:
    """Measures one step, from the creation of the clock until `stop` is called."""

    def __init__(self) -> None:
        self._start = self._read()

    def stop(self) -> StepTimes:
        return StepTimes(
            *(end - start for start, end in zip(self._start, self._read(), strict=True))
        )

    def _read(self) -> tuple[float, float, float]:
        return time.monotonic(), time.process_time(), time.thread_time()


class StepGuard:
    """Detects slow steps with guides by comparing them to steps without guides."""

    def __init__(self) -> None:
        # Initially, assume that inference takes the thread's CPU time multiplied by the number of
        # cores. Each measured step without guides reduces the weight of this assumption.
        self._duration_s, self._thread_s = float(os.cpu_count() or 1), 1.0
        self._num_slow = 0

    def learn(self, times: StepTimes) -> None:
        """Add a step without guides and reset the number of consecutive slow steps."""
        self._duration_s = _DECAY * self._duration_s + times.duration_s
        self._thread_s = _DECAY * self._thread_s + times.thread_s
        self._num_slow = 0

    def is_slow(self, times: StepTimes, compile_s: float) -> bool:
        """Return whether this step and the previous one, both with guides, were too slow.

        `compile_s` is the time that the step is expected to need to compile new guides.
        """
        inference_s = times.thread_s * self._duration_s / self._thread_s
        limit_s = LIMIT_S + compile_s + _TOLERANCE * inference_s
        self._num_slow = self._num_slow + 1 if times.duration_s > limit_s else 0
        return self._num_slow >= _NUM_SLOW_STEPS
