"""Decide whether and when to restart a server that failed.

The number of restarts is not limited. Otherwise, a client whose requests crash the server a few
times could take the service down for all clients. As in Kubernetes, the back-off before a restart
doubles with each failure, up to a maximum. The supervisor gives up only if several consecutive
starts fail, because further starts would probably fail for the same reason, for example a missing
file.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The pauses before restarts, and the limit for failed starts.

    The pause before the first restart is `first_pause_s`. Each further pause is twice as long, up
    to `max_pause_s`. If the server was ready for longer than `reset_after_s` before it failed, the
    next pause is `first_pause_s` again. If `max_failed_starts` consecutive starts fail, the server
    is not restarted.
    """

    first_pause_s: float = 1.0
    max_pause_s: float = 30.0
    max_failed_starts: int = 5
    reset_after_s: float = 120.0


@dataclass(frozen=True, slots=True)
class FailureCounts:
    """The failure counts that determine the next restart.

    - `failures`: number of failures since the pause was last reset.
    - `failed_starts`: number of consecutive failed starts.
    """

    failures: int = 0
    failed_starts: int = 0


def count_failure(
    counts: FailureCounts, policy: RestartPolicy, ready_for_s: float | None
) -> FailureCounts:
    """Return the counts after another failure.

    `ready_for_s` is the time that the server was ready before it failed, or None if the start
    failed.
    """
    if ready_for_s is None:
        return FailureCounts(counts.failures + 1, counts.failed_starts + 1)
    return FailureCounts(1 if ready_for_s > policy.reset_after_s else counts.failures + 1)


def choose_pause_s(counts: FailureCounts, policy: RestartPolicy) -> float | None:
    """Return the pause before the next start, in seconds, or None to give up."""
    if counts.failed_starts >= policy.max_failed_starts:
        return None
    # Limit the exponent, because large powers of two cannot be converted to a float.
    doublings = min(max(0, counts.failures - 1), 64)
    return float(min(policy.first_pause_s * 2**doublings, policy.max_pause_s))
