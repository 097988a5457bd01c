"""Check that the catalog declares all exported and documented metrics exactly once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import trtllm_serve_cli
from trtllm_serve_cli.metrics.catalog import CATALOG, find_families
from trtllm_serve_cli.metrics.exporters.export import make_rules
from trtllm_serve_cli.metrics.exporters.grafana import PANELS
from trtllm_serve_cli.runtime.telemetry.families import (
    ENGINE_FAMILIES,
    REQUEST_FAMILIES,
    REQUESTS,
    SERVER_FAMILIES,
    TTFT,
)

PACKAGE = Path(trtllm_serve_cli.__file__).parent
DOCS = Path(__file__).parents[2] / "docs"
# Labels that all families of models may have, or that Prometheus adds.
COMMON = {"model", "version", "instance", "job", "le"}
_SELECTOR = re.compile(r"(\w+)\{([^}]*)\}")
_LABEL = re.compile(r'(\w+)(?:=|!=|=~)"([^"]*)"')


def queries() -> Iterator[str]:
    """Yield all PromQL expressions in the dashboard and the rules."""
    for panel in PANELS:
        yield from panel.queries.values()
    for group in make_rules("5m")["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


def selected_labels() -> Iterator[tuple[str, str, str]]:
    """Yield the sample, label and value of each selector in `queries`, except common labels."""
    for query in queries():
        for sample, labels in _SELECTOR.findall(query):
            for label, value in _LABEL.findall(labels):
                if label not in COMMON:
                    yield sample, label, value


def test_each_family_is_named_once() -> None:
    sources = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    named = Counter(name for text in sources for name in re.findall(r"\b(?:nv|tllm)_\w+", text))
    assert {each.name: named[each.name] for each in CATALOG} == dict.fromkeys(
        (each.name for each in CATALOG), 1
    )


def test_every_expression_uses_catalog_families() -> None:
    named = set().union(*map(find_families, queries()))
    assert {REQUESTS, TTFT} < named < set(CATALOG)


def test_every_selector_uses_a_label_of_its_family() -> None:
    selected = list(selected_labels())
    assert ("nv_trt_llm_request_metrics", "request_type", "waiting") in selected
    for sample, label, value in selected:
        (family,) = find_families(sample)
        assert (label, value in family.values) == (family.label, True), sample


def test_an_unknown_family_is_an_error() -> None:
    with pytest.raises(KeyError, match="tllm_request_total"):
        find_families("rate(tllm_request_total[5m])")


@pytest.mark.parametrize("page", ["reference/server-metrics.md", "guides/kubernetes.md"])
def test_docs_name_only_catalog_families(page: str) -> None:
    names = set(re.findall(r"`(nv_\w+|tllm_\w+)`", (DOCS / page).read_text(encoding="utf-8")))
    assert names
    assert names <= {each.name for each in CATALOG}


def test_every_tllm_family_is_documented() -> None:
    page = (DOCS / "reference" / "server-metrics.md").read_text(encoding="utf-8")
    undocumented = [
        each.name
        for each in (*REQUEST_FAMILIES, *ENGINE_FAMILIES, *SERVER_FAMILIES)
        if f"`{each.name}`" not in page
    ]
    assert undocumented == []
