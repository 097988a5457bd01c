"""Parse the command-line arguments of `pod_probe` and `job_server`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..pulse import read_pulses
from .liveness import HangLimits
from .token_probe import request_token


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """The addresses and time limits for watching a server.

    - `pulses`: the folder to which the server's processes write heartbeats.
    - `http`, `metrics`: the addresses of Triton's HTTP and metrics endpoints.
    - `token_model`: the text model from which to request a token, or empty if the engine writes
      heartbeats.
    - `token_inputs`: the text model's inputs as JSON.
    """

    pulses: Path
    http: str
    metrics: str
    limits: HangLimits
    token_model: str = ""
    token_inputs: str = "{}"

    @property
    def needs_tokens(self) -> bool:
        """True if `token_model` is set and no engine worker writes heartbeats."""
        # Keep the files of ended model processes, because these processes must be reported.
        pulses = read_pulses(self.pulses, reports_ended=True)
        return bool(self.token_model) and not any(pulse.role == "worker" for pulse in pulses)

    def request_token(self) -> None:
        """Request a token. Return after the response or an error."""
        # The timeout must be longer than the time after which the engine counts as hung.
        timeout_s = 2 * (self.limits.hang_timeout_s or self.limits.load_timeout_s)
        request_token(self.http, self.token_model, self.token_inputs, timeout_s)


def parse_arguments(
    parser: argparse.ArgumentParser, words: Sequence[str]
) -> tuple[WatchSettings, argparse.Namespace]:
    """Add the arguments for `WatchSettings` to `parser` and parse `words`.

    Return the settings and a namespace with all arguments.
    """
    add = partial(parser.add_argument, required=True)
    add("--pulses", type=Path)
    add("--http")
    add("--metrics")
    add("--hang-timeout", type=float)
    add("--load-timeout", type=float)
    parser.add_argument("--token", nargs=2, metavar=("MODEL", "INPUTS"), default=("", "{}"))
    found = parser.parse_args(words)
    limits = HangLimits(hang_timeout_s=found.hang_timeout, load_timeout_s=found.load_timeout)
    return WatchSettings(found.pulses, found.http, found.metrics, limits, *found.token), found
