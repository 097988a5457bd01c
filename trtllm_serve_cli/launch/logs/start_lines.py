"""Parse the log lines in which server processes report their startup stages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trtllm_serve_cli.launch.logs.triton_log import TLLM_PREFIX

_PAIR = re.compile(r"(\w+)=(\S+)")


@dataclass(frozen=True, slots=True)
class ReportedStart:
    """The startup of a process that serves `model`.

    `started_at` is in seconds since the epoch. `stages_s` maps consecutive stages to durations in
    seconds.
    """

    model: str
    started_at: float
    stages_s: dict[str, float]

    @property
    def ended_at(self) -> float:
        return self.started_at + sum(self.stages_s.values())


def read_start_lines(lines: Iterable[str], message: str) -> Iterator[ReportedStart]:
    """Yield the startup reported by each line that contains `message`.

    Lines are plain text or JSON. Skip lines that are not valid startup reports.
    """
    for line in lines:
        if message not in line:
            continue
        try:
            yield _parse(line)
        except (KeyError, TypeError, ValueError):  # not a startup report
            continue


def _parse(line: str) -> ReportedStart:
    fields: dict[str, Any] = json.loads(line) if line[0] == "{" else dict(_PAIR.findall(line))
    if found := TLLM_PREFIX.match(line):
        fields["model"] = found["model"]
    started = datetime.fromisoformat(str(fields["started_at"]).replace("Z", "+00:00"))
    stages_s = {
        name.removesuffix("_s").replace("_", " "): float(value)
        for name, value in fields.items()
        if name.endswith("_s")
    }
    return ReportedStart(fields["model"], started.timestamp(), stages_s)
