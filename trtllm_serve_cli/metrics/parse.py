"""A metrics page as a snapshot that can be asked for values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from trtllm_serve_cli.errors import RequestFailed


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of the page. A counter has its name without `_total`, as Triton writes it."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All samples of one page; `taken_at_s` is whatever clock the caller gave."""

    taken_at_s: float
    samples: tuple[Sample, ...]

    def find(self, name: str, **labels: str) -> tuple[Sample, ...]:
        """The samples of that name, with or without `_total`, whose labels include `labels`."""
        plain = name.removesuffix("_total")
        return tuple(
            sample
            for sample in self.samples
            if sample.name == plain and labels.items() <= sample.labels.items()
        )

    def value(self, name: str, **labels: str) -> float | None:
        """The sum of what `find` gives, `None` when it gives nothing."""
        found = self.find(name, **labels)
        return sum(sample.value for sample in found) if found else None

    def models(self, *prefixes: str) -> tuple[tuple[str, str], ...]:
        """Name and version of every model that has a sample whose name begins with a prefix."""
        return tuple(
            sorted(
                {
                    (sample.labels["model"], sample.labels.get("version", ""))
                    for sample in self.samples
                    if sample.name.startswith(prefixes) and "model" in sample.labels
                }
            )
        )


def parse_metrics(page: str, taken_at_s: float) -> Snapshot:
    """The samples of a page in Prometheus' text format; raises `RequestFailed` for a broken one.

    A page that was cut shows it by its last line, which has no end. Families that we do not know
    are kept; a value that is no number (NaN) or infinite is none.
    """
    if page and not page.endswith("\n"):
        raise _broken("it ends in the middle of a line")
    try:
        samples = tuple(
            Sample(_plain_name(sample.name, family.type), dict(sample.labels), float(sample.value))
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if math.isfinite(sample.value)
        )
    except (ValueError, LookupError) as error:
        raise _broken(f"a line of it is not in Prometheus' format ({error})") from error
    return Snapshot(taken_at_s, samples)


def _plain_name(name: str, family_type: str) -> str:
    # The parser puts the suffix where a page lacks it: OpenMetrics wants it, Triton has none.
    return name.removesuffix("_total") if family_type == "counter" else name


def _broken(why: str) -> RequestFailed:
    return RequestFailed(
        "The metrics page is broken.",
        why=why,
        next_step="try again; `tllm metrics --raw` shows the page as it comes",
    )
