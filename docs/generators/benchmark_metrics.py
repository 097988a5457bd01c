"""Generate the tables of benchmark-metrics.md, and the metrics in the JSON schema of results."""

from __future__ import annotations

import json

from generators.markdown import DOCS, fill_in, render_table
from trtllm_serve_cli.bench.model.arrivals import AllAtOnce
from trtllm_serve_cli.bench.model.metrics import RATES, TIMES, RateMetric, TimeMetric
from trtllm_serve_cli.bench.report.result_json import SCHEMA_FILE
from trtllm_serve_cli.bench.stats.statistics import summarize

METRIC_COLUMNS = (
    "name",
    "in tables",
    "in `summary.json`",
    "in options",
    "needs",
    "formula",
)


def render_metrics() -> str:
    """Return benchmark-metrics.md with its tables of times and rates."""
    tables = {
        name: render_table(METRIC_COLUMNS, map(describe_metric, metrics))
        for name, metrics in (("times", TIMES), ("rates", RATES))
    }
    return fill_in(DOCS / "reference" / "benchmark-metrics.md", tables)


def describe_metric(metric: TimeMetric | RateMetric) -> tuple[str, ...]:
    """Return a row in the order of METRIC_COLUMNS."""
    return (
        metric.title,
        metric.label,
        f"`{metric.key}`",
        metric.name and f"`{metric.name}`",
        f"`{metric.needs}`" if metric.needs else "",
        metric.definition,
    )


def render_result_schema() -> str:
    """Return the JSON schema of results, with rates and times in the order of `summary.json`."""
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    summary = schema["$defs"]["Summary"]
    number_or_null = {"type": ["number", "null"]}
    times = {"anyOf": [{"$ref": "#/$defs/Distribution"}, {"type": "null"}]}
    known = {
        **summary["properties"],
        # The rates of tensorrtllm_backend's benchmark are always measured.
        **{rate.key: {"type": "number"} if rate.upstream else number_or_null for rate in RATES},
        **{time.key: times for time in TIMES},
    }
    summary["required"] = list(summarize([], AllAtOnce(), streamed=False).to_json())
    summary["properties"] = {name: known[name] for name in summary["required"]}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
