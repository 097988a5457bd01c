"""Generate a Grafana dashboard for a server's metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtllm_serve_cli.metrics.catalog import (
    CPU_MEMORY_USED,
    CPU_UTILIZATION,
    GPU_MEMORY_USED,
    GPU_POWER,
    GPU_UTILIZATION,
    KV_TRANSFERS,
)
from trtllm_serve_cli.runtime.telemetry.families import (
    DURATION,
    ENGINE_REQUESTS,
    GENERATION_TOKENS,
    ITL,
    KV_BLOCKS,
    PREEMPTIONS,
    PREFIX_HITS,
    PREFIX_QUERIES,
    REQUESTS,
    TTFT,
    WORKER_RESTARTS,
    Family,
)

_HOST = 'instance=~"$instance"'
_ON = f'{_HOST},model=~"$model"'
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT, _PER_ROW = 8, 8, 3


@dataclass(frozen=True, slots=True)
class Panel:
    """A time series panel of the dashboard.

    - `unit`: Grafana's identifier for the unit.
    - `queries`: maps legends to PromQL queries.
    - `most`: y-axis maximum, or None to let Grafana choose it.
    - `warn_above`: value of the red threshold line, or None for no line.
    """

    title: str
    help: str
    unit: str
    queries: Mapping[str, str]
    most: float | None = None
    warn_above: float | None = None


def _quantiles(histogram: Family) -> dict[str, str]:
    buckets, _, _ = histogram.sample_names
    return {
        f"p{round(q * 100)} {{{{model}}}}": f"histogram_quantile({q}, sum by (model, le) "
        f"(rate({buckets}{{{_ON}}}[$__rate_interval])))"
        for q in (0.5, 0.9, 0.99)
    }


def _blocks(kind: str) -> str:
    return f'sum by (model) ({KV_BLOCKS.name}{{{_ON},{KV_BLOCKS.label}="{kind}"}})'


def _rate(counter: Family, by: str = "model") -> str:
    return f"sum by ({by}) (rate({counter.name}{{{_ON}}}[$__rate_interval]))"


def _transfers(kind: str) -> str:
    selector = f'{_ON},{KV_TRANSFERS.label}="{kind}"'
    return f"sum by (model) (rate({KV_TRANSFERS.name}{{{selector}}}[$__rate_interval]))"


def _increase(counter: Family) -> str:
    return f"sum by (model) (increase({counter.name}{{{_ON}}}[$__rate_interval]))"


def _legend(*labels: str) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in labels)


PANELS: Sequence[Panel] = (
    Panel(
        "Requests by outcome",
        "No request should end with an error. Invalid requests, and requests that arrive while "
        "the queue is full, are rejected.",
        "reqps",
        {_legend("model", REQUESTS.label): _rate(REQUESTS, f"model, {REQUESTS.label}")},
    ),
    Panel(
        "Generated tokens",
        "Throughput levels off when the engine is saturated.",
        "cps",
        {"{{model}}": _rate(GENERATION_TOKENS)},
    ),
    Panel(
        "Requests in the engine",
        "If the number of waiting requests keeps growing, the server is overloaded.",
        "short",
        {
            _legend(ENGINE_REQUESTS.label): f"sum by ({ENGINE_REQUESTS.label}) "
            f'({ENGINE_REQUESTS.name}{{{_ON},{ENGINE_REQUESTS.label}!="max"}})'
        },
    ),
    Panel(
        "Time to first token",
        "The time grows with the number of waiting requests and with the prompt length.",
        "s",
        _quantiles(TTFT),
    ),
    Panel(
        "Inter-token latency",
        "The latency grows with the batch size. Users notice values above 0.1 s.",
        "s",
        _quantiles(ITL),
    ),
    Panel(
        "Request duration",
        "The time from the arrival of a request to the end of its response. Cancelled and failed "
        "requests are excluded.",
        "s",
        _quantiles(DURATION),
    ),
    Panel(
        "KV cache",
        "If the KV cache is nearly full, requests wait or are preempted.",
        "percentunit",
        {"{{model}}": f"{_blocks('used')} / {_blocks('max')}"},
        most=1,
        warn_above=0.9,
    ),
    Panel(
        "Prefix cache hit rate",
        "A higher hit rate shortens the time to first token.",
        "percentunit",
        {"{{model}}": f"{_rate(PREFIX_HITS)} / ({_rate(PREFIX_QUERIES)} > 0)"},
        most=1,
    ),
    Panel(
        "Preemptions and worker restarts",
        "Both values should be zero.",
        "short",
        {
            "preemptions {{model}}": _increase(PREEMPTIONS),
            "restarts {{model}}": _increase(WORKER_RESTARTS),
        },
    ),
    Panel(
        "KV cache transfers",
        "Mean time to transfer the KV cache of a request between disaggregated servers.",
        "ms",
        {
            "{{model}}": f"{_transfers('kv_cache_transfer_ms')} / "
            f"({_transfers('request_count')} > 0)"
        },
    ),
    Panel(
        "GPU and CPU utilization",
        "If GPU utilization is low while requests are waiting, the GPU is not the bottleneck.",
        "percentunit",
        {
            _legend(GPU_UTILIZATION.label): f"{GPU_UTILIZATION.name}{{{_HOST}}}",
            "CPU {{instance}}": f"{CPU_UTILIZATION.name}{{{_HOST}}}",
        },
        most=1,
    ),
    Panel(
        "Memory",
        "GPU memory and main memory in use.",
        "bytes",
        {
            _legend(GPU_MEMORY_USED.label): f"{GPU_MEMORY_USED.name}{{{_HOST}}}",
            "machine {{instance}}": f"{CPU_MEMORY_USED.name}{{{_HOST}}}",
        },
    ),
    Panel(
        "GPU power",
        "A GPU that reaches its power limit is well utilized and lowers its clock rate.",
        "watt",
        {_legend(GPU_POWER.label): f"{GPU_POWER.name}{{{_HOST}}}"},
    ),
)


def make_dashboard() -> dict[str, Any]:
    """Return a Grafana dashboard with selectors for servers and models."""
    return {
        "title": "tllm",
        "uid": "tllm",
        "tags": ["tllm", "triton", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "annotations": {"list": []},
        "templating": {"list": [_datasource(), _variable("instance"), _variable("model")]},
        "panels": [_panel(index, panel) for index, panel in enumerate(PANELS)],
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource",
            "query": "prometheus"}  # fmt: skip


def _variable(label: str) -> dict[str, Any]:
    query = f"label_values({REQUESTS.name}, {label})"
    return {
        "name": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": label},
        "definition": query,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "refresh": 2,
        "sort": 1,
    }


def _panel(index: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(index, _PER_ROW)
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.warn_above is not None:
        steps.append({"color": "red", "value": panel.warn_above})
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.help,
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                **({"max": panel.most} if panel.most is not None else {}),
                "custom": {
                    "lineWidth": 1,
                    "fillOpacity": 10,
                    "thresholdsStyle": {"mode": "line" if panel.warn_above else "off"},
                },
                "thresholds": {"mode": "absolute", "steps": steps},
            },
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": query,
             "legendFormat": legend, "editorMode": "code", "range": True}
            for number, (legend, query) in enumerate(panel.queries.items())
        ],
    }  # fmt: skip
