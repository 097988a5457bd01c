"""Format a comparison as rows and sentences for an 80-column terminal."""

from __future__ import annotations

from collections.abc import Iterable

from trtllm_serve_cli.bench.model.metrics import NAMED_RATES
from trtllm_serve_cli.bench.report.compare import FAILED, Change, Comparison

CHANGE_COLUMNS = ("Metric", "A", "B", "Change", "95 % interval", "")
_UNITS = {**dict.fromkeys(NAMED_RATES, ""), FAILED: " (%)"}
_VERDICTS = {"better": "better", "worse": "WORSE", "noise": "noise", "untold": "?"}


def change_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return one row for each compared measure, with the columns in `CHANGE_COLUMNS`."""
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
    """Return one row for each difference in settings or environment."""
    return [(each.what, _text(each.before), _text(each.after)) for each in comparison.differences]


def noise_notes(comparison: Comparison) -> Iterable[str]:
    """Yield sentences that explain which kinds of noise the confidence intervals account for."""
    before, after = comparison.num_runs
    if min(before, after) > 1:
        yield (
            "The intervals account for the noise between runs "
            f"({before} and {after} runs, Welch's t-test)."
        )
        if min(before, after) < 4:
            yield (
                "With so few runs, only large differences are detectable. "
                "Use --repeat 5 to detect smaller differences."
            )
    else:
        yield (
            "The intervals account only for the noise between requests "
            f"(runs: {before} and {after}, bootstrap). "
            "To also account for the noise between runs, use --repeat 5."
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
