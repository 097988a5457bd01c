"""Parse objectives such as `ttft:p95<500ms`, which limit the time metrics of a run."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trtllm_serve_cli.bench.model.metrics import NAMED_TIMES, TimeMetric
from trtllm_serve_cli.errors import BadInput

_UNITS_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_FORM = re.compile(
    r"(?P<metric>\w+)(?::(?P<statistic>mean|max|p\d+(?:\.\d+)?))?\s*<=?\s*"
    r"(?P<limit>\d+(?:\.\d+)?)\s*(?P<unit>[a-z]+)"
)


@dataclass(frozen=True, slots=True)
class Objective:
    """A limit on one statistic of one metric.

    `percent` is the percentile, 100 for the maximum, or `None` for the mean. A value of exactly
    `limit_ms` meets the objective.
    """

    metric: str
    percent: float | None
    limit_ms: float

    @property
    def time_metric(self) -> TimeMetric:
        return NAMED_TIMES[self.metric]

    def __str__(self) -> str:
        match self.percent:
            case None:
                statistic = "mean"
            case 100.0:
                statistic = "max"
            case percent:
                statistic = f"p{percent:g}"
        return f"{self.metric}:{statistic}<{self.limit_ms:g}ms"


def parse_objective(text: str) -> Objective:
    """Parse `METRIC[:STATISTIC]<LIMIT`, where `<=` is equivalent to `<`.

    STATISTIC is `mean`, `max` or a percentile such as `p95`. Without a statistic, the limit applies
    to the maximum. LIMIT is a positive number, followed by `us`, `ms` or `s`. Raise `BadInput` if
    `text` is invalid.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise _refuse(text, "the format is METRIC[:STATISTIC]<LIMIT, with a unit (us, ms or s)")
    metric, statistic, unit = found["metric"], found["statistic"] or "max", found["unit"]
    if metric not in NAMED_TIMES:
        known = ", ".join(NAMED_TIMES)
        raise _refuse(text, f"{metric!r} is not a supported metric; the metrics are {known}")
    if unit not in _UNITS_MS:
        raise _refuse(text, f"{unit!r} is not a supported unit; the units are us, ms and s")
    percent = {"mean": None, "max": 100.0}.get(statistic, -1.0)
    if percent == -1.0:
        percent = float(statistic.removeprefix("p"))
        if not 0 < percent <= 100:
            raise _refuse(text, "the percentile must be above 0 and at most 100")
    limit_ms = float(found["limit"]) * _UNITS_MS[unit]
    if not limit_ms:
        raise _refuse(text, "the limit must be above 0")
    return Objective(metric, percent, limit_ms)


def _refuse(text: str, why: str) -> BadInput:
    return BadInput(
        f"The objective {text!r} is invalid.",
        why=why,
        next_step="pass a valid objective in quotes, for example `--slo 'ttft:p95<500ms'`",
    )
