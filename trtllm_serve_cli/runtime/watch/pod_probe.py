"""Check the readiness or liveness of the server in a Kubernetes pod, as an exec probe.

Each probe is independent of earlier probes. It observes the server until each part (see
`liveness`) has made progress since the probe started. If the processes are idle or generate tokens,
a probe takes about half a second. The readiness probe fails if a part is silent. The liveness probe
fails if a part hangs, and Kubernetes then restarts the container.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial

from .health_probe import HealthProbe, is_ready_on_http, responds_on_http
from .hung_processes import write_stacks
from .liveness import Observer, Sign, Silence, describe_silence, read_pulse_signs
from .token_probe import TokenRequest, count_steps
from .watch_settings import WatchSettings, parse_arguments

_POLL_S = 0.25
# Placeholder for Triton's process id, which is not needed in a pod.
_NO_PID = 0


def find_bad(
    read_signs: Callable[[], Iterable[Sign]],
    is_bad: Callable[[Silence], bool],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Silence]:
    """Observe a server until `is_bad` returns true for a part, or all parts have made progress.

    Return the parts for which `is_bad` returns true. `clock` returns the time in seconds.
    """
    observer = Observer(clock)
    first_marks: dict[str, Hashable] = {}
    while True:
        silences = observer.observe(read_signs())
        if bad := [each for each in silences if is_bad(each)]:
            return bad
        marks = {each.sign.part: each.sign.mark for each in silences}
        first_marks = {**marks, **first_marks}
        if all(first_marks[part] != mark for part, mark in marks.items()):
            return []
        sleep(_POLL_S)


def read_signs(
    settings: WatchSettings, health: HealthProbe, token: TokenRequest | None
) -> Iterator[Sign]:
    """Yield a `Sign` for each part of the server."""
    yield from read_pulse_signs(settings.pulses, settings.limits, reports_ended=True)
    yield health.read_sign(settings.limits, _NO_PID)
    # After the request has ended, the engine counts as alive.
    if token is not None and not token.is_over:
        yield token.read_sign(settings.limits, _NO_PID)


def main(words: Sequence[str] | None = None) -> None:
    """Print a message for each part that fails the readiness or liveness check.

    Exit with code 1 if a part fails, and with 0 otherwise.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", choices=("ready", "live"))
    settings, arguments = parse_arguments(parser, sys.argv[1:] if words is None else words)
    clock, limits = time.monotonic, settings.limits
    is_live = arguments.question == "live"
    responds = partial(responds_on_http if is_live else is_ready_on_http, settings.http)
    health = HealthProbe(settings.http, responds, clock, period_s=limits.probe_period_s)
    token = None
    if settings.needs_tokens:
        count = partial(count_steps, settings.metrics)
        token = TokenRequest(settings.token_model, settings.request_token, count, clock)
    bad = find_bad(
        partial(read_signs, settings, health, token),
        (lambda each: each.is_hang) if is_live else (lambda each: each.is_silent),
    )
    for each in bad:
        print(describe_silence(each))
    if is_live:
        write_stacks(bad)
    sys.exit(bool(bad))
