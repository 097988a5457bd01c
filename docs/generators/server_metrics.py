"""Generate the tables of metric families in server-metrics.md."""

from __future__ import annotations

from collections.abc import Iterable

from generators.markdown import DOCS, fill_in, render_table
from trtllm_serve_cli.metrics.catalog import (
    BACKEND_FAMILIES,
    CATALOG,
    ENGINE_FAMILIES,
    REQUEST_FAMILIES,
    SERVER_FAMILIES,
    TRITON_FAMILIES,
    find_families,
)
from trtllm_serve_cli.metrics.exporters.export import make_rules
from trtllm_serve_cli.metrics.exporters.grafana import PANELS
from trtllm_serve_cli.metrics.parse import Sample, Snapshot
from trtllm_serve_cli.metrics.summary import Summary, summarize
from trtllm_serve_cli.runtime.telemetry.families import Family

FAMILY_COLUMNS = ("family", "type", "unit", "label", "what", "shown in")


def render_families() -> str:
    """Return server-metrics.md with its tables of metric families."""
    shown = {
        "`tllm metrics`": {each for each in CATALOG if is_on_screen(each)},
        "Grafana": find_families(" ".join(q for p in PANELS for q in p.queries.values())),
        "rules": find_families(
            " ".join(rule["expr"] for group in make_rules("")["groups"] for rule in group["rules"])
        ),
    }
    parts = {
        "requests": REQUEST_FAMILIES,
        "engine": ENGINE_FAMILIES,
        "server": SERVER_FAMILIES,
        "others": (*BACKEND_FAMILIES, *TRITON_FAMILIES),
    }
    tables = {}
    for part, families in parts.items():
        rows = (
            (*describe_family(family), ", ".join(name for name in shown if family in shown[name]))
            for family in families
        )
        tables[part] = render_table(FAMILY_COLUMNS, rows)
    return fill_in(DOCS / "reference" / "server-metrics.md", tables)


def describe_family(family: Family) -> tuple[str, ...]:
    """Return a family in the order of FAMILY_COLUMNS, without the column "shown in"."""
    label = f"`{family.label}`" if family.label else ""
    values = f": {', '.join(family.values)}" if family.values else ""
    return f"`{family.name}`", family.type, family.unit, f"{label}{values}", family.help


def is_on_screen(family: Family) -> bool:
    """Return whether `tllm metrics` shows the family.

    It does if its summary of a page changes without the family.
    """
    return summarize_families(CATALOG) != summarize_families(set(CATALOG) - {family})


def summarize_families(families: Iterable[Family]) -> Summary:
    """Return the summary of a page with these families, of one of our models and another model."""
    labels = {"version": "1", "le": "+Inf"}
    samples = (
        Sample(name.removesuffix("_total"), {**labels, "model": model, **own}, 1.0)
        for family in families
        for model in (("ours", "other") if family.origin == "triton" else ("ours",))
        for name in family.sample_names
        for own in map(family.own_label, family.values or ("any",))
    )
    return summarize(Snapshot(0.0, tuple(samples)))
