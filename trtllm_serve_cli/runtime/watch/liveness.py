"""Detect hung parts of a server from regular observations.

The observed parts of a server are its processes, its engines and Triton's endpoints. A part makes
progress when the process writes a heartbeat, the engine completes a step, or Triton responds to a
health request on the endpoint. If a part makes no progress within a time limit, the part is silent,
and the server is no longer ready. After a second, longer time limit, the part counts as hung, and
its process or the whole server is restarted.

A busy engine has long time limits, because a single step can take a long time if it includes a
prefill or a compilation. An idle process writes about two heartbeats per second, so its time limits
are short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..pulse import Pulse, PulseState, Role, read_pulses
from .processes import is_stopped

# Maximum silence, in seconds, that one observation can add to a part. A longer gap means that the
# observer was suspended or received no CPU time. The server probably did not run either, so the gap
# must not count as a hang.
_MAX_ELAPSED_S = 5.0
# The kind of process to restart if a part hangs. For "model" and "triton", the whole server is
# restarted.
Owner = Literal["model", "worker", "gateway", "triton"]
_OWNERS: Mapping[Role, str] = {
    "worker": "the engine worker of ",
    "model": "the process of model ",
    "gateway": "the OpenAI-compatible gateway",
}


@dataclass(frozen=True, slots=True)
class HangLimits:
    """The time limits for parts that do not respond, in seconds.

    - `hang_timeout_s`: an engine with requests counts as hung if it does not complete a step within
      this time. If 0, nothing is restarted.
    - `load_timeout_s`: after a worker has died, its engine must be reloaded within this time or
      `hang_timeout_s`, whichever is longer.
    - `idle_silence_s`: the server is no longer ready if an idle process is silent for this time, or
      for half the time after which the process counts as hung, whichever is shorter.
    - `min_idle_hang_s`, `idle_hang_s`: an idle process counts as hung if it does not respond within
      `hang_timeout_s`, clamped to this range.
    - `busy_silence_s`: the server is no longer ready if an engine with requests is silent for this
      time, or for half of `hang_timeout_s`, whichever is shorter.
    - `probe_period_s`: the minimum interval between two health requests to Triton.
    - `token_period_s`: if an engine without heartbeats does not complete a step within this time,
      the supervisor or the job's first rank requests a token.
    """

    hang_timeout_s: float = 120.0
    load_timeout_s: float = 300.0
    idle_silence_s: float = 10.0
    idle_hang_s: float = 30.0
    min_idle_hang_s: float = 5.0
    busy_silence_s: float = 30.0
    probe_period_s: float = 1.0
    token_period_s: float = 30.0

    @property
    def idle(self) -> tuple[float, float]:
        """The `(silent_after_s, hangs_after_s)` limits for an idle process."""
        if not self.hang_timeout_s:
            return self.idle_silence_s, math.inf
        hangs_s = min(self.idle_hang_s, max(self.hang_timeout_s, self.min_idle_hang_s))
        return min(self.idle_silence_s, hangs_s / 2), hangs_s

    @property
    def busy(self) -> tuple[float, float]:
        """The `(silent_after_s, hangs_after_s)` limits for an engine with requests."""
        return min(self.busy_silence_s, self._timeout_s / 2), self._timeout_s

    @property
    def reload(self) -> tuple[float, float]:
        """The `(silent_after_s, hangs_after_s)` limits for an engine whose worker has died.

        The engine is silent immediately, and hung if it is not reloaded in time.
        """
        return 0.0, max(self.load_timeout_s, self._timeout_s)

    @property
    def end(self) -> tuple[float, float]:
        """The `(silent_after_s, hangs_after_s)` limits for a process that has exited.

        The process is silent immediately, and hung immediately unless hang detection is disabled.
        """
        return 0.0, 0.0 if self.hang_timeout_s else math.inf

    @property
    def _timeout_s(self) -> float:
        return self.hang_timeout_s or math.inf


@dataclass(frozen=True, slots=True)
class Sign:
    """An observation of one part of a server.

    - `part`: the name of the part.
    - `mark`: a value that changes when the part makes progress, for example the number of
      heartbeats.
    - `what`: the message for users if the part is silent.
    - `silent_after_s`: the part is silent if `mark` does not change for this time, in seconds.
    - `hangs_after_s`: the part is hung if `mark` does not change for this time, in seconds.
    - `owner`: the kind of process to restart if the part hangs.
    - `pid`: the id of the part's process.
    """

    part: str
    mark: Hashable
    what: str
    silent_after_s: float
    hangs_after_s: float
    owner: Owner
    pid: int


@dataclass(frozen=True, slots=True)
class Silence:
    """The time for which a part of the server has made no progress.

    `sign` is the part's latest `Sign`. `lasted_s` is the time in seconds since `Sign.mark` last
    changed.
    """

    sign: Sign
    lasted_s: float = 0.0

    @property
    def is_silent(self) -> bool:
        """True if the server is not ready because of this part."""
        return self.lasted_s >= self.sign.silent_after_s

    @property
    def is_hang(self) -> bool:
        """True if the part counts as hung."""
        return self.lasted_s >= self.sign.hangs_after_s


def read_pulse_signs(
    folder: Path, limits: HangLimits, *, reports_ended: bool = False
) -> Iterator[Sign]:
    """Yield a `Sign` for each process that writes heartbeats to `folder`.

    Skip processes that have not finished loading. If `reports_ended` is true, also yield a `Sign`
    for each model process that has exited (see `read_pulses`).
    """
    for pulse in read_pulses(folder, reports_ended=reports_ended):
        sign = sign_of_pulse(pulse, limits, has_stopped=is_stopped(pulse.pid))
        if sign is not None:
            yield sign


def sign_of_pulse(pulse: Pulse, limits: HangLimits, *, has_stopped: bool = False) -> Sign | None:
    """Return the `Sign` for a heartbeat, or None while the process starts for the first time.

    `has_stopped` is true if a signal has stopped the process. The short time limits of an idle
    process then also apply to a busy engine, because a stopped engine cannot complete its step.
    """
    part = f"{pulse.role} {pulse.model} {pulse.pid}"
    who = f"{_OWNERS[pulse.role]}{'' if pulse.role == 'gateway' else pulse.model}"
    process = f"{who} (process {pulse.pid})"
    match pulse.state:
        case PulseState.LOADING:
            return None
        case PulseState.IDLE:
            what = f"{process} has not responded for {limits.idle[0]:g} s"
            return Sign(part, pulse.num_beats, what, *limits.idle, pulse.role, pulse.pid)
        case PulseState.BUSY:
            mark = (pulse.num_beats, pulse.num_updates, pulse.iteration)
            if has_stopped:
                what = f"{process} has not responded for {limits.idle[0]:g} s"
                return Sign(part, mark, what, *limits.idle, pulse.role, pulse.pid)
            # `num_in_flight` counts only client requests, not the worker's self-test.
            count = max(pulse.num_in_flight, 1)
            requests = f"{count} request{'s' * (count != 1)}"
            what = (
                f"{process} has not completed a step for {limits.busy[0]:g} s, with {requests} in "
                "flight"
            )
            return Sign(part, mark, what, *limits.busy, pulse.role, pulse.pid)
        case PulseState.FAILED:
            what = f"{who} died, and the engine has not been reloaded"
            return Sign(f"{part} reload", "failed", what, *limits.reload, "model", pulse.pid)
        case PulseState.ENDED:
            return Sign(f"{part} end", "ended", f"{process} died", *limits.end, "model", pulse.pid)


def count_processes(silences: Iterable[Silence]) -> int:
    """Return the number of distinct processes in `silences`. A process may have several parts."""
    return len({each.sign.pid for each in silences})


def update_silences(
    before: Mapping[str, Silence], signs: Iterable[Sign], elapsed_s: float
) -> dict[str, Silence]:
    """Return the `Silence` of each part in `signs`, keyed by part name.

    `elapsed_s` is the time in seconds since the previous observation. A part's silence starts when
    the part is first observed, and starts again each time `Sign.mark` changes.
    """
    return {sign.part: _follow(before.get(sign.part), sign, elapsed_s) for sign in signs}


def _follow(known: Silence | None, sign: Sign, elapsed_s: float) -> Silence:
    if known is None or known.sign.mark != sign.mark:
        return Silence(sign)
    return Silence(sign, known.lasted_s + min(elapsed_s, _MAX_ELAPSED_S))


class Observer:
    """Measures how long each part of a server has been silent.

    `clock` returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._silences: dict[str, Silence] = {}
        self._observed_s = clock()

    def observe(self, signs: Iterable[Sign]) -> list[Silence]:
        """Return a `Silence` for each part, including parts that are not silent."""
        now_s = self._clock()
        self._silences = update_silences(self._silences, signs, now_s - self._observed_s)
        self._observed_s = now_s
        return list(self._silences.values())

    def forget(self, silence: Silence) -> None:
        """Discard the observations of a part whose process was killed."""
        self._silences.pop(silence.sign.part, None)


def describe_silence(silence: Silence) -> str:
    """Return a message about a silent part."""
    suffix = " (stopped by a signal)" if is_stopped(silence.sign.pid) else ""
    return f"{silence.sign.what}{suffix}"
