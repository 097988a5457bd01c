"""Render a server's metrics as tables and labelled values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trtllm_serve_cli.cli.shared.tables import FittedTable

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

    from trtllm_serve_cli.metrics.histogram import Latency
    from trtllm_serve_cli.metrics.summary import EngineRow, GpuRow, HostRow, ModelRow, Summary

_BAR_WIDTH = 24
_MIB = 1024 * 1024
UNKNOWN = "-"


def render_summary(summary: Summary) -> Group:
    """Render the models, engines and host of one server."""
    from rich.console import Group

    parts: list[RenderableType] = []
    if summary.models:
        parts.append(_render_models(summary.models))
        parts += [_describe_failures(row) for row in summary.models if row.num_failed]
        answering = [row for row in summary.models if row.num_generated_tokens]
        parts += [_render_answers(answering)] if answering else []
    else:
        parts.append("No model is loaded.\n")
    parts += [_render_block(f"engine {e.model}", _engine_lines(e)) for e in summary.engines]
    parts.append(_render_block("host", _host_lines(summary.host)))
    return Group(*parts)


def _render_models(rows: tuple[ModelRow, ...]) -> FittedTable:
    has_rates = any(row.requests_per_s is not None for row in rows)
    columns = ("model", "ok", "failed", "pending", "queue ms", "compute ms")
    lines = [
        (
            row.model,
            text(row.num_succeeded),
            str(row.num_failed),
            text(row.num_pending),
            _ms(row.queue_ms),
            _ms(row.compute_ms),
            *([rate(row.requests_per_s)] if has_rates else ()),
        )
        for row in rows
    ]
    return FittedTable((*columns, *(["ok/s"] if has_rates else ())), lines, is_numeric=True)


def _render_answers(rows: list[ModelRow]) -> FittedTable:
    """Return a table with the token counts and latencies of the models' responses."""
    has_rates = any(row.tokens_per_s is not None for row in rows)
    columns = ("model", "tokens in", "out", "TTFT p50 ms", "p90", "ITL p50 ms", "p90")
    lines = [
        (
            row.model,
            text(row.num_prompt_tokens),
            text(row.num_generated_tokens),
            *show_latency(row.ttft),
            *show_latency(row.itl),
            *([rate(row.tokens_per_s)] if has_rates else ()),
        )
        for row in rows
    ]
    return FittedTable((*columns, *(["tokens/s"] if has_rates else ())), lines, is_numeric=True)


def show_latency(latency: Latency | None) -> tuple[str, str]:
    """Return the median and the 90th percentile of a latency as text, in milliseconds."""
    if latency is None:
        return UNKNOWN, UNKNOWN
    return show_ms(latency.p50_ms), show_ms(latency.p90_ms)


def show_ms(value: float) -> str:
    """Return a number of milliseconds as text.

    Values of 10 or more have no decimals, because percentiles computed from histograms are not
    that precise.
    """
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _describe_failures(row: ModelRow) -> str:
    reasons = ", ".join(f"{count} {why.lower()}" for why, count in row.failures.items())
    return f"{row.model} failed: {reasons}\n"


def _render_block(title: str, lines: list[tuple[str, str]]) -> Table:
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", title_style="bold", show_header=False, box=None
    )
    table.add_column(min_width=14)
    table.add_column(overflow="fold")
    for name, value in lines:
        table.add_row(name, value)
    table.add_row("", "")
    return table


def _engine_lines(engine: EngineRow) -> list[tuple[str, str]]:
    lines = []
    if engine.is_worker_up is not None:
        lines.append(("engine worker", describe_worker(engine)))
    lines.append(
        (
            "requests",
            f"{text(engine.num_active)} active, {text(engine.num_scheduled)} scheduled, "
            f"{text(engine.num_context)} in context, {text(engine.num_waiting)} waiting, "
            f"{text(engine.max_requests)} at most",
        )
    )
    if engine.kv_blocks_max is not None:
        lines.append(
            (
                "KV cache",
                f"{bar(engine.kv_fraction)} {percent(engine.kv_fraction)}, "
                f"{text(engine.kv_blocks_used)} of {engine.kv_blocks_max} blocks "
                f"of {text(engine.tokens_per_block)} tokens",
            )
        )
    if engine.prefix_hit_fraction is not None:
        preempted = engine.num_preemptions or 0
        lines.append(
            (
                "",
                f"{percent(engine.prefix_hit_fraction)} of prompt blocks reused, "
                f"{preempted} preemption{'s' * (preempted != 1)}",
            )
        )
    memory = ", ".join(f"{kind} {_mib(size)}" for kind, size in engine.memory_bytes.items() if size)
    if memory:
        lines.append(("memory", memory))
    if engine.num_kv_transfers:
        mean = UNKNOWN if engine.kv_transfer_ms is None else show_ms(engine.kv_transfer_ms)
        lines.append(("KV transfers", f"{engine.num_kv_transfers} requests, {mean} ms on average"))
    if engine.v1:
        lines.append(("V1 batching", _join_words(engine.v1)))
    if engine.iteration is not None:
        per_s = engine.iterations_per_s
        shown = f"{engine.iteration}" + (f", {rate(per_s)}" if per_s else "")
        lines.append(("iteration", shown))
    return lines


def describe_worker(engine: EngineRow) -> str:
    """Return the state of the engine worker and its number of restarts, as text."""
    restarts = engine.num_worker_restarts or 0
    state = "up" if engine.is_worker_up else "DOWN"
    return f"{state}, {restarts} restart{'s' * (restarts != 1)}"


def _join_words(figures: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in figures.items())


def _host_lines(host: HostRow) -> list[tuple[str, str]]:
    return [
        ("CPU", percent(host.cpu_utilization)),
        ("memory", f"{_mib(host.memory_used_bytes)} of {_mib(host.memory_total_bytes)}"),
        *((f"GPU {index}", describe_gpu(gpu)) for index, gpu in enumerate(host.gpus)),
    ]


def describe_gpu(gpu: GpuRow) -> str:
    """Return the utilization, memory and power of a GPU as text."""
    power = "" if gpu.power_w is None else f", {gpu.power_w:.0f} W"
    if gpu.power_w is not None and gpu.power_limit_w:
        power += f" of {gpu.power_limit_w:.0f} W"
    return (
        f"{percent(gpu.utilization)}, {_mib(gpu.memory_used_bytes)} "
        f"of {_mib(gpu.memory_total_bytes)}{power}"
    )


def bar(fraction: float | None, width: int = _BAR_WIDTH) -> str:
    """Return a horizontal bar that is `width` characters wide and filled to `fraction`."""
    filled = round(min(1.0, max(0.0, fraction or 0.0)) * width)
    return "█" * filled + "░" * (width - filled)


def text(value: int | None) -> str:
    """Return a count as text, or "-" if the count is unknown."""
    return UNKNOWN if value is None else str(value)


def _ms(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"


def rate(value: float | None) -> str:
    """Return a rate per second as text, or "-" if the rate is unknown."""
    return UNKNOWN if value is None else f"{value:.1f}/s"


def percent(fraction: float | None) -> str:
    """Return a fraction as a percentage, or "-" if the fraction is unknown."""
    return UNKNOWN if fraction is None else f"{fraction * 100:.0f} %"


def _mib(size: int | None) -> str:
    return UNKNOWN if size is None else f"{size / _MIB:,.0f} MiB"
