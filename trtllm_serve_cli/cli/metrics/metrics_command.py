"""`tllm metrics`: show and export the metrics of running servers."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtllm_serve_cli.choices import MetricsExport
from trtllm_serve_cli.cli.command_groups import FullSummaryGroup
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.completion import addresses
from trtllm_serve_cli.cli.shared.exits import INTERRUPTED
from trtllm_serve_cli.cli.shared.options import ForceOption, JsonOption, ServedModelOption
from trtllm_serve_cli.cli.shared.target import find_gateway_metrics, find_metrics
from trtllm_serve_cli.errors import TllmError

if TYPE_CHECKING:
    from trtllm_serve_cli.metrics.parse import Snapshot
    from trtllm_serve_cli.metrics.summary import Summary
    from trtllm_serve_cli.metrics.watch import Watch

UrlsOption = Annotated[
    list[str] | None,
    typer.Option(
        "-u",
        "--url",
        metavar="HOST:PORT",
        help="Metrics address of a server, as shown by `tllm status`. For servers that tllm "
        "started, the HTTP or gRPC address is also accepted. Repeatable. Default: the only running "
        "server.",
        autocompletion=addresses("metrics"),
    ),
]

_INTERVAL_S = 2.0
_HOLD = "5m"

metrics_app = typer.Typer(
    cls=FullSummaryGroup,
    invoke_without_command=True,
    no_args_is_help=False,
    subcommand_metavar="[COMMAND] [ARGS]...",
)


@metrics_app.callback()
def metrics(
    context: typer.Context,
    model: ServedModelOption = None,
    url: UrlsOption = None,
    as_json: JsonOption = False,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw", help="Print the server's metrics unchanged, in the Prometheus text format."
        ),
    ] = False,
    since: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=(
                "Show rates and latencies for the time since FILE was saved, according to its "
                "modification time. FILE is the output of an earlier `tllm metrics --raw`. By "
                "default, latencies cover the time since the server started, and rates are not "
                "shown."
            ),
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Show a live screen with trends and rates. Press q to quit."),
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help=f"Time between updates with --watch, in seconds. Default: {_INTERVAL_S:g}.",
        ),
    ] = None,
) -> None:
    """Show the request, engine and host metrics of running servers.

    Counters start at 0 when the server starts. With --json, or if stdin or stdout is not a
    terminal, --watch prints one line per server and interval until you press Ctrl-C.

    Requests that the OpenAI-compatible API sends directly to an engine worker are counted only in
    the gateway's own metrics, for example at http://127.0.0.1:9000/metrics.

    Example:  tllm metrics --watch --interval 5
    """
    if context.invoked_subcommand is not None:
        if any((model, url, as_json, raw, since, watch, interval)):
            raise typer.BadParameter(
                "The options of `export` must follow the command name. Put the options after "
                "`tllm metrics export`."
            )
        return
    if raw and (as_json or watch or since):
        raise typer.BadParameter(
            "--raw cannot be used with --json, --watch or --since. Omit the other options.",
            param_hint="--raw",
        )
    if since is not None and watch:
        raise typer.BadParameter(
            "--since cannot be used with --watch. Omit one of them.", param_hint="--since"
        )
    if interval is not None and not watch:
        raise typer.BadParameter(
            "--interval requires --watch. Add --watch, or omit --interval.",
            param_hint="--interval",
        )
    addresses = _find_addresses(url, model)
    if len(addresses) > 1 and (raw or since is not None):
        flag = "--raw" if raw else "--since"
        raise typer.BadParameter(
            f"{flag} requires a single server. Pass one of these servers: "
            f"{' or '.join(f'-u {each}' for each in addresses)}.",
            param_hint=flag,
        )
    if watch:
        _watch(addresses, interval or _INTERVAL_S, as_json=as_json)
    elif raw:
        from trtllm_serve_cli.metrics.fetch import fetch_metrics

        print(fetch_metrics(addresses[0]), end="")
    elif len(addresses) > 1:
        _show_several(addresses, as_json=as_json)
    else:
        _show_one(addresses[0], since, as_json=as_json)


@metrics_app.command("export")
def export(
    what: Annotated[
        MetricsExport,
        typer.Argument(metavar="{prometheus|grafana}", help="Program to configure."),
    ],
    output_dir: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Output folder.")
    ],
    model: ServedModelOption = None,
    url: UrlsOption = None,
    hold: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="TIME",
            help="Time that a condition must hold before an alert fires, for example 10m. "
            f"Default: {_HOLD}.",
        ),
    ] = None,
    force: ForceOption = False,
) -> None:
    """Write a Prometheus or Grafana configuration for monitoring servers.

    `prometheus` writes a scrape configuration, recording rules for common queries, and alerts.
    `grafana` writes a dashboard for the same metrics.

    Example:  tllm metrics export prometheus -o monitoring
    """
    from trtllm_serve_cli.metrics.exporters.export import plan_export, write_export

    if what == "grafana" and any((model, url, hold)):
        raise typer.BadParameter(
            "-m, -u and --for apply only to prometheus. Omit these options for grafana, because "
            "the dashboard works with any server and does not define alerts."
        )
    addresses = _find_addresses(url, model) if what == "prometheus" else ()
    for path in write_export(output_dir, plan_export(what, addresses, hold or _HOLD), force=force):
        print(path)


def _find_addresses(urls: list[str] | None, model: str | None) -> tuple[str, ...]:
    if urls and model is not None:
        raise typer.BadParameter(
            "-m and -u cannot be used together. Omit one of them.", param_hint="-m"
        )
    return find_metrics(urls or (), model)


def _show_one(address: str, since: Path | None, *, as_json: bool) -> None:
    from trtllm_serve_cli.cli.metrics.metrics_screen import render_summary
    from trtllm_serve_cli.metrics.fetch import fetch_metrics, read_saved_metrics
    from trtllm_serve_cli.metrics.parse import parse_metrics
    from trtllm_serve_cli.metrics.summary import summarize

    before = read_saved_metrics(since) if since is not None else None
    summary = summarize(parse_metrics(fetch_metrics(address), time.time()), before)
    gateway = find_gateway_metrics(address)
    if as_json:
        output.show_json(_as_data(address, summary) | {"gateway_metrics": gateway})
        return
    output.show(render_summary(summary))
    _notify_gateways([gateway])


def _notify_gateways(urls: Iterable[str | None]) -> None:
    """Print the metrics URLs of gateways. `urls` contains None for a server without a gateway."""
    if known := list(dict.fromkeys(url for url in urls if url is not None)):
        output.notify(f"Metrics of the OpenAI-compatible API: {', '.join(known)}")


def _show_several(addresses: tuple[str, ...], *, as_json: bool) -> None:
    """Show the metrics of each server that responds.

    If the metrics of some servers cannot be fetched, print all errors except the first, and raise
    the first.
    """
    from trtllm_serve_cli.cli.metrics.dashboard import Feed, render_servers
    from trtllm_serve_cli.metrics.fetch import fetch_metrics
    from trtllm_serve_cli.metrics.parse import parse_metrics
    from trtllm_serve_cli.metrics.summary import summarize

    feeds, summaries, gateways, errors = [], [], [], []
    for address in addresses:
        try:
            snapshot = parse_metrics(fetch_metrics(address), time.time())
        except TllmError as error:
            errors.append(error)
            continue
        feeds.append(Feed(address, interval_s=0.0))
        feeds[-1].add_scrape(snapshot)
        gateways.append(find_gateway_metrics(address))
        summaries.append(_as_data(address, summarize(snapshot)) | {"gateway_metrics": gateways[-1]})
    if as_json:
        output.show_json(summaries)
    elif feeds:
        output.show(render_servers(feeds, output.console().width))
        _notify_gateways(gateways)
    for each in errors[1:]:
        output.show_error(each)
    if errors:
        raise errors[0]


def _watch(addresses: tuple[str, ...], interval_s: float, *, as_json: bool) -> None:
    from trtllm_serve_cli.metrics.fetch import fetch_metrics
    from trtllm_serve_cli.metrics.watch import watch_metrics

    timeout_s = max(5.0, interval_s)
    sources: dict[str, Watch] = {
        address: partial(watch_metrics, partial(fetch_metrics, address, timeout_s), interval_s)
        for address in addresses
    }
    try:
        if sys.stdout.isatty() and sys.stdin.isatty() and not as_json:
            from trtllm_serve_cli.cli.metrics.dashboard import run_dashboard

            run_dashboard(sources, interval_s)
        else:
            _print_lines(sources, as_json=as_json)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _print_lines(sources: dict[str, Watch], *, as_json: bool) -> None:
    from trtllm_serve_cli.metrics.summary import summarize
    from trtllm_serve_cli.metrics.watch import start_watches

    before: dict[str, Snapshot] = {}
    news = start_watches(sources)
    while True:
        address, scraped = news.get()
        name = f"{address}  " if len(sources) > 1 else ""
        if isinstance(scraped, TllmError):
            now = time.strftime("%H:%M:%S")
            output.notify(f"{now}  {name}{scraped.what} Why: {scraped.why}. Retrying …")
            continue
        summary = summarize(scraped, before.get(address))
        before[address] = scraped
        if as_json:
            output.show_json_line(_as_data(address, summary))
        else:
            print(_as_line(name, summary), flush=True)


def _as_data(address: str, summary: Summary) -> dict[str, Any]:
    return {"at": time.time(), "server": address, **dataclasses.asdict(summary)}


def _as_line(name: str, summary: Summary) -> str:
    """Return the summary of a scrape as one line for logs."""
    from trtllm_serve_cli.cli.metrics.metrics_screen import percent, rate, text

    parts = [f"{time.strftime('%H:%M:%S')}  {name}".rstrip()]
    for row in summary.models:
        if row.requests_per_s or row.num_pending:
            tokens = f", {row.tokens_per_s:.1f} tokens/s" if row.tokens_per_s is not None else ""
            pending = text(row.num_pending)
            parts.append(f"{row.model} {rate(row.requests_per_s)}{tokens} pending {pending}")
    for engine in summary.engines:
        parts.append(
            f"{engine.model}: active {text(engine.num_active)} waiting {text(engine.num_waiting)}"
            f" KV {percent(engine.kv_fraction)}"
        )
    parts.append(f"CPU {percent(summary.host.cpu_utilization)}")
    return "  ".join(parts)
