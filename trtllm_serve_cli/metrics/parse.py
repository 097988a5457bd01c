"""Parse a metrics page into a snapshot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from trtllm_serve_cli.errors import RequestFailed


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample on a metrics page. The `name` of a counter does not include the `_total` suffix."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All samples on a metrics page. `taken_at_s` is the scrape time on the caller's clock."""

    taken_at_s: float
    samples: tuple[Sample, ...]

    def find(self, name: str, **labels: str) -> tuple[Sample, ...]:
        """Return the samples that have the name `name` and all of `labels`.

        Samples may have additional labels. A `_total` suffix in `name` is ignored.
        """
        plain = name.removesuffix("_total")
        return tuple(
            sample
            for sample in self.samples
            if sample.name == plain and labels.items() <= sample.labels.items()
        )

    def value(self, name: str, **labels: str) -> float | None:
        """Return the sum of the matching samples, or `None` if no sample matches."""
        found = self.find(name, **labels)
        return sum(sample.value for sample in found) if found else None

    def models(self, *prefixes: str) -> tuple[tuple[str, str], ...]:
        """Return the name and version of each model that has samples, in sorted order.

        Consider only samples whose names start with one of `prefixes`.
        """
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
    """Parse a page in Prometheus' text format. Raise `RequestFailed` if the page is not valid.

    A nonempty page without a final newline is truncated and therefore not valid. Keep unknown
    families and drop NaN and infinite values.
    """
    if page and not page.endswith("\n"):
        raise _broken("the page ends in the middle of a line")
    try:
        samples = tuple(
            Sample(_plain_name(sample.name, family.type), dict(sample.labels), float(sample.value))
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if math.isfinite(sample.value)
        )
    except (ValueError, LookupError) as error:
        raise _broken(f"a line is not in Prometheus' text format ({error})") from error
    return Snapshot(taken_at_s, samples)


def _plain_name(name: str, family_type: str) -> str:
    # The parser adds `_total` to counter names that lack it. Remove the suffix from all counter
    # names, because Triton's own counters do not have it.
    return name.removesuffix("_total") if family_type == "counter" else name


def _broken(why: str) -> RequestFailed:
    return RequestFailed(
        "The metrics page is not valid.",
        why=why,
        next_step="run the command again, or inspect the page with `tllm metrics --raw`",
    )
