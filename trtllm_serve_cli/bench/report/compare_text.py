"""A comparison as rows and sentences for the screen, in 80 columns."""

from __future__ import annotations

from collections.abc import Iterable

from trtllm_serve_cli.bench.model.metrics import NAMED_RATES
from trtllm_serve_cli.bench.report.compare import FAILED, Change, Comparison

CHANGE_COLUMNS = ("Figure", "A", "B", "Change", "95 % interval", "")
_UNITS = {**dict.fromkeys(NAMED_RATES, ""), FAILED: " (%)"}
_VERDICTS = {"better": "better", "worse": "WORSE", "noise": "noise", "untold": "?"}


def change_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """One row for each figure, in the order of `CHANGE_COLUMNS`."""
    return [
        (
            change.measure + _UNITS.get(change.measure, " (ms)"),
            _number(change.before),
            _number(change.after),
            "-" if change.change is None else _percent(change.change, change),
            _interval(change),
            _VERDICTS[change.verdict],
        )
        for change in comparison.changes
    ]


def difference_rows(comparison: Comparison) -> list[tuple[str, str, str]]:
    """What was not alike, one row each."""
    return [(each.what, _text(each.before), _text(each.after)) for each in comparison.differences]


def noise_notes(comparison: Comparison) -> Iterable[str]:
    """What the intervals are made of."""
    before, after = comparison.num_runs
    if min(before, after) > 1:
        yield f"Noise: from run to run ({before} and {after} runs), by Welch's t."
        if min(before, after) < 4:
            yield "So few runs let only large differences stand out: --repeat 5 tells more."
    else:
        yield (
            f"Noise: from request to request only, by bootstrap ({before} and {after} runs). What "
            "differs from run to run is not in it: --repeat 5 would tell."
        )


def _interval(change: Change) -> str:
    if change.interval is None:
        return "-"
    low, high = (_percent(end, change) for end in change.interval)
    return f"{low} … {high}"


def _percent(share: float, change: Change) -> str:
    sign = " pt" if change.measure == FAILED else "%"
    return f"{100 * share:+.1f}{sign}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"


def _text(value: object) -> str:
    return "-" if value is None else str(value)
