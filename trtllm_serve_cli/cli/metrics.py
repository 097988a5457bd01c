"""`tllm metrics`: what the running server says about itself."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtllm_serve_cli.cli import output
from trtllm_serve_cli.cli.exits import INTERRUPTED
from trtllm_serve_cli.cli.options import JsonOption, ModelOption
from trtllm_serve_cli.cli.target import find_metrics
from trtllm_serve_cli.errors import TllmError

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

    from trtllm_serve_cli.metrics import EngineRow, GpuRow, HostRow, ModelRow, Snapshot, Summary

_BAR_WIDTH = 24
_MIB = 1024 * 1024
_UNKNOWN = "-"


def metrics(
    model: ModelOption = None,
    url: Annotated[
        str | None,
        typer.Option(
            "-u",
            "--url",
            metavar="HOST:PORT",
            help="Another server: the address of its metrics.",
        ),
    ] = None,
    as_json: JsonOption = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print the page as the server sends it.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on until Ctrl-C, with rates per second.")
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="With --watch: how often.")
    ] = 2.0,
) -> None:
    """Show requests, engine and host of the running server.

    Counters count since the server started. Without a terminal --watch prints lines.

    Example:  tllm metrics --watch --interval 5
    """
    if raw and (as_json or watch):
        raise typer.BadParameter("goes with neither --json nor --watch", param_hint="--raw")
    if url is not None and model is not None:
        raise typer.BadParameter("finds a server of `tllm start`: not with -u", param_hint="-m")
    from trtllm_serve_cli.metrics import fetch_metrics, parse_metrics, summarize

    address = find_metrics(url, model)
    if watch:
        _watch(address, interval, as_json=as_json)
        return
    page = fetch_metrics(address)
    if raw:
        print(page, end="")
        return
    summary = summarize(parse_metrics(page, time.monotonic()))
    if as_json:
        output.show_json(_as_data(summary))
    else:
        output.show(_render(summary))


def _watch(address: str, interval_s: float, *, as_json: bool) -> None:
    from trtllm_serve_cli.metrics import fetch_metrics, summarize, watch_metrics

    is_screen = sys.stdout.isatty() and not as_json
    live: Any = _open_screen() if is_screen else None
    before: Snapshot | None = None
    timeout_s = max(5.0, interval_s)
    try:
        for scraped in watch_metrics(lambda: fetch_metrics(address, timeout_s), interval_s):
            if isinstance(scraped, TllmError):
                _show_gap(scraped, live)
                continue
            summary = summarize(scraped, before)
            before = scraped
            if live is not None:
                live.update(_render(summary), refresh=True)
            elif as_json:
                print(json.dumps(_as_data(summary), ensure_ascii=False), flush=True)
            else:
                print(_as_line(summary), flush=True)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if live is not None:
            live.stop()


def _open_screen() -> Any:
    from rich.live import Live

    live = Live(console=output.console(), auto_refresh=False, screen=True)
    live.start()
    return live


def _show_gap(error: TllmError, live: Any) -> None:
    """One line for a scrape that failed; the watch goes on."""
    line = f"{time.strftime('%H:%M:%S')}  {error.what} Why: {error.why}. Trying again …"
    if live is None:
        output.say(line)
    else:
        live.update(line, refresh=True)


def _as_data(summary: Summary) -> dict[str, Any]:
    return {"at": time.time(), **dataclasses.asdict(summary)}


def _as_line(summary: Summary) -> str:
    """One scrape in one line, for logs."""
    parts = [time.strftime("%H:%M:%S")]
    for row in summary.models:
        if row.requests_per_s or row.num_pending:
            rate, pending = _rate(row.requests_per_s), _text(row.num_pending)
            parts.append(f"{row.model} {rate} pending {pending}")
    for engine in summary.engines:
        parts.append(
            f"{engine.model}: active {_text(engine.num_active)} waiting {_text(engine.num_waiting)}"
            f" KV {_percent(engine.kv_fraction)}"
        )
    parts.append(f"CPU {_percent(summary.host.cpu_utilization)}")
    return "  ".join(parts)


def _render(summary: Summary) -> Group:
    from rich.console import Group

    parts: list[RenderableType] = []
    if summary.models:
        parts.append(_render_models(summary.models))
        parts += [_describe_failures(row) for row in summary.models if row.num_failed]
    else:
        parts.append("No model is loaded.\n")
    parts += [_render_block(f"engine {e.model}", _engine_lines(e)) for e in summary.engines]
    parts.append(_render_block("host", _host_lines(summary.host)))
    return Group(*parts)


def _render_models(rows: tuple[ModelRow, ...]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    has_rates = any(row.requests_per_s is not None for row in rows)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("model", overflow="fold")
    for name in ("ok", "failed", "pending", "queue ms", "compute ms"):
        table.add_column(name, justify="right", overflow="fold")
    if has_rates:
        table.add_column("ok/s", justify="right")
    for row in rows:
        cells = [
            row.model,
            _text(row.num_succeeded),
            str(row.num_failed),
            _text(row.num_pending),
            _ms(row.queue_ms),
            _ms(row.compute_ms),
        ]
        table.add_row(*cells, *([_rate(row.requests_per_s)] if has_rates else []))
    return table


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
        restarts = engine.num_worker_restarts or 0
        state = "up" if engine.is_worker_up else "DOWN"
        lines.append(("engine worker", f"{state}, {restarts} restart{'s' * (restarts != 1)}"))
    lines.append(
        (
            "requests",
            f"{_text(engine.num_active)} active, {_text(engine.num_scheduled)} scheduled, "
            f"{_text(engine.num_context)} in context, {_text(engine.num_waiting)} waiting, "
            f"{_text(engine.max_requests)} at most",
        )
    )
    if engine.kv_blocks_max is not None:
        lines.append(
            (
                "KV cache",
                f"{_bar(engine.kv_fraction)} {_percent(engine.kv_fraction)}, "
                f"{_text(engine.kv_blocks_used)} of {engine.kv_blocks_max} blocks "
                f"of {_text(engine.tokens_per_block)} tokens",
            )
        )
    memory = ", ".join(f"{kind} {_mib(size)}" for kind, size in engine.memory_bytes.items())
    if memory:
        lines.append(("memory", memory))
    if engine.iteration is not None:
        rate = engine.iterations_per_s
        lines.append(("iteration", f"{engine.iteration}" + (f", {_rate(rate)}" if rate else "")))
    return lines


def _host_lines(host: HostRow) -> list[tuple[str, str]]:
    return [
        ("CPU", _percent(host.cpu_utilization)),
        ("memory", f"{_mib(host.memory_used_bytes)} of {_mib(host.memory_total_bytes)}"),
        *((f"GPU {index}", _describe_gpu(gpu)) for index, gpu in enumerate(host.gpus)),
    ]


def _describe_gpu(gpu: GpuRow) -> str:
    power = "" if gpu.power_w is None else f", {gpu.power_w:.0f} W"
    if gpu.power_w is not None and gpu.power_limit_w:
        power += f" of {gpu.power_limit_w:.0f} W"
    return (
        f"{_percent(gpu.utilization)}, {_mib(gpu.memory_used_bytes)} "
        f"of {_mib(gpu.memory_total_bytes)}{power}"
    )


def _bar(fraction: float | None) -> str:
    filled = round(min(1.0, max(0.0, fraction or 0.0)) * _BAR_WIDTH)
    return "█" * filled + "░" * (_BAR_WIDTH - filled)


def _text(value: int | None) -> str:
    return _UNKNOWN if value is None else str(value)


def _ms(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.2f}"


def _rate(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.1f}/s"


def _percent(fraction: float | None) -> str:
    return _UNKNOWN if fraction is None else f"{fraction * 100:.0f} %"


def _mib(size: int | None) -> str:
    return _UNKNOWN if size is None else f"{size / _MIB:,.0f} MiB"
