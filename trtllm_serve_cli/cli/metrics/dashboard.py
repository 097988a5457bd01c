"""Draw the live screen for `tllm metrics --watch`, with current values and trends."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trtllm_serve_cli.cli.metrics.metrics_screen import (
    UNKNOWN,
    bar,
    describe_gpu,
    describe_worker,
    percent,
    show_latency,
    text,
)
from trtllm_serve_cli.cli.shared.tables import FittedTable
from trtllm_serve_cli.cli.shared.tty_keys import open_keyboard
from trtllm_serve_cli.errors import TllmError

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

    from trtllm_serve_cli.metrics.parse import Snapshot
    from trtllm_serve_cli.metrics.summary import ModelRow, Summary
    from trtllm_serve_cli.metrics.watch import Watch, WatchQueue

# Time span, in seconds, over which each model's rates and latency percentiles are computed.
_WINDOW_S = 30.0
# Maximum number of points in a trend. Terminals usually have fewer columns.
_MAX_POINTS = 400
_STEPS = "▁▂▃▄▅▆▇█"
# Interval, in seconds, at which the dashboard reads keys and checks for new scrapes and a resized
# terminal.
_TICK_S = 0.1
_BAR_WIDTH = 12


class Feed:
    """The latest scrapes of one server's metrics, and the trends of the metrics.

    The scrapes cover the last `_WINDOW_S` seconds, but at least two scrapes are kept. `summary` is
    computed from these scrapes. `problem` is a message if the last scrape failed or was late.
    """

    def __init__(self, address: str, interval_s: float) -> None:
        self.address = address
        self.problem = ""
        self.summary: Summary | None = None
        self.trends: dict[str, deque[float | None]] = {}
        self._interval_s = interval_s
        self._snapshots: deque[Snapshot] = deque()

    def add_scrape(self, scraped: Snapshot | TllmError) -> None:
        """Add the next scrape to the summary and trends.

        If the scrape failed, `scraped` is the error that the dashboard shows.
        """
        from trtllm_serve_cli.metrics.summary import summarize

        if isinstance(scraped, TllmError):
            since = time.strftime("%H:%M:%S")
            self.problem = f"{since}  {scraped.what} Why: {scraped.why}. Retrying …"
            self._extend(dict.fromkeys(self.trends))
            return
        last = self._snapshots[-1] if self._snapshots else None
        took_s = scraped.taken_at_s - last.taken_at_s if last and not self.problem else 0.0
        self.problem = (
            f"The server is slow: the last two scrapes were {took_s:.1f} s apart instead of "
            f"{self._interval_s:g} s."
            if took_s > 1.8 * self._interval_s
            else ""
        )
        self._snapshots.append(scraped)
        # Keep at least two scrapes even if the interval exceeds the window, because computing a
        # rate requires two.
        while (
            len(self._snapshots) > 2
            and scraped.taken_at_s - self._snapshots[0].taken_at_s > _WINDOW_S
        ):
            self._snapshots.popleft()
        first = self._snapshots[0] if len(self._snapshots) > 1 else None
        self.summary = summarize(scraped, first)
        self._extend(_read_trends(summarize(scraped, last)))

    def _extend(self, values: dict[str, float | None]) -> None:
        for name, value in values.items():
            self.trends.setdefault(name, deque(maxlen=_MAX_POINTS)).append(value)

    def last(self, name: str) -> float | None:
        """Return the latest value of a trend, or None if the value is unknown."""
        trend = self.trends.get(name)
        return trend[-1] if trend else None


def run_dashboard(sources: dict[str, Watch], interval_s: float) -> None:
    """Scrape each server in `sources` in its own thread and draw the metrics until the user quits.

    The keys of `sources` are the servers' addresses.
    """
    from rich.live import Live

    from trtllm_serve_cli.cli.shared import output
    from trtllm_serve_cli.metrics.watch import start_watches

    feeds = {address: Feed(address, interval_s) for address in sources}
    news = start_watches(sources)
    console = output.console()
    with (
        open_keyboard() as keyboard,
        Live(console=console, auto_refresh=False, screen=True) as live,
    ):
        drawn_size: object = None
        while "q" not in keyboard.wait(_TICK_S).lower():
            has_changed = _receive_scrapes(news, feeds)
            if has_changed or console.size != drawn_size:
                drawn_size = console.size
                live.update(
                    render_dashboard(tuple(feeds.values()), console.width, interval_s),
                    refresh=True,
                )


def _receive_scrapes(news: WatchQueue, feeds: dict[str, Feed]) -> bool:
    has_changed = False
    while not news.empty():
        address, scraped = news.get()
        feeds[address].add_scrape(scraped)
        has_changed = True
    return has_changed


def render_dashboard(feeds: Sequence[Feed], width: int, interval_s: float) -> Group:
    """Render the dashboard `width` columns wide.

    A single server is shown in detail; several servers are shown on one line each.
    """
    from rich.console import Group

    parts: list[RenderableType] = [_render_title(feeds, width, interval_s)]
    if len(feeds) > 1:
        parts.append(render_servers(feeds, width))
    elif feeds[0].summary is not None:
        parts += _render_server(feeds[0], feeds[0].summary, width)
    parts += [_render_problem(feed, is_named=len(feeds) > 1) for feed in feeds if feed.problem]
    return Group(*parts)


def sparkline(values: Sequence[float | None], width: int, maximum: float | None = None) -> str:
    """Return the last `width` values as bar characters, with a space for each None.

    A full-height bar represents `maximum`, or the highest value shown if `maximum` is not set.
    """
    shown = list(values)[-width:]
    top = maximum or max((each for each in shown if each is not None), default=0.0)
    return "".join(" " if each is None else _step(each, top) for each in shown)


def _step(value: float, top: float) -> str:
    share = min(max(value / top, 0.0), 1.0) if top else 0.0
    return _STEPS[min(int(share * len(_STEPS)), len(_STEPS) - 1)]


def _read_trends(summary: Summary) -> dict[str, float | None]:
    from trtllm_serve_cli.metrics.summary import sum_known

    engines, gpus = summary.engines, summary.host.gpus
    return {
        "tokens/s": sum_known(row.tokens_per_s for row in summary.models),
        "requests/s": sum_known(row.requests_per_s for row in _client_models(summary)),
        "active": sum_known(engine.num_active for engine in engines),
        "batch": sum_known(engine.num_scheduled for engine in engines),
        "waiting": sum_known(engine.num_waiting for engine in engines),
        "KV cache": max(
            (e.kv_fraction for e in engines if e.kv_fraction is not None), default=None
        ),
        "CPU": summary.host.cpu_utilization,
        **{f"GPU {number}": gpu.utilization for number, gpu in enumerate(gpus)},
    }


def _client_models(summary: Summary) -> list[ModelRow]:
    """Return the models that receive client requests, which are the models that count tokens.

    If no model counts tokens, return all models.
    """
    ours = [row for row in summary.models if row.num_generated_tokens is not None]
    return ours or list(summary.models)


def _render_title(feeds: Sequence[Feed], width: int, interval_s: float) -> Text:
    from rich.text import Text

    what = feeds[0].address if len(feeds) == 1 else f"{len(feeds)} servers"
    left = f"{what}  {time.strftime('%H:%M:%S')}  every {interval_s:g} s"
    return Text(f"{left:<{max(width - 8, 0)}} q quits"[:width], style="reverse", no_wrap=True)


def _render_server(feed: Feed, summary: Summary, width: int) -> list[RenderableType]:
    rows = [row for row in _client_models(summary) if row.num_succeeded or row.num_failed]
    parts: list[RenderableType] = [_render_models(rows)]
    parts.append(_render_trends(feed, summary, width))
    for engine in summary.engines:
        facts = [f"worker {describe_worker(engine)}"] if engine.is_worker_up is not None else []
        if engine.prefix_hit_fraction is not None:
            facts.append(f"{percent(engine.prefix_hit_fraction)} of prompt blocks reused")
        if count := engine.num_preemptions:
            facts.append(f"{count} preemption{'s' * (count != 1)}")
        parts.append(_line(f"{engine.model}: {', '.join(facts)}", engine.is_worker_up is False))
    return parts


def _render_models(rows: Sequence[ModelRow]) -> RenderableType:
    if not rows:
        return "\nno requests yet\n"
    columns = ("model", "ok", "failed", "ok/s", "tok/s", "TTFT p50 ms", "p90", "ITL p50 ms", "p90")
    cells = [
        (
            row.model,
            text(row.num_succeeded),
            str(row.num_failed),
            _figure(row.requests_per_s),
            _figure(row.tokens_per_s),
            *show_latency(row.ttft),
            *show_latency(row.itl),
        )
        for row in rows
    ]
    return FittedTable(columns, cells, is_numeric=True)


def _render_trends(feed: Feed, summary: Summary, width: int) -> Table:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, min_width=10)
    table.add_column(no_wrap=True, justify="right", min_width=8)
    table.add_column(no_wrap=True, overflow="crop")
    room = max(width - 10 - 8 - 4 - _BAR_WIDTH - 1, 10)
    for name, trend in feed.trends.items():
        is_share = name in ("KV cache", "CPU") or name.startswith("GPU")
        value = trend[-1]
        if value is None and name not in ("tokens/s", "requests/s"):
            continue
        line = sparkline(trend, room, 1.0 if is_share else None)
        shown = percent(value) if is_share else _figure(value)
        table.add_row(name, shown, f"{bar(value, _BAR_WIDTH)} {line}" if is_share else line)
    for number, gpu in enumerate(summary.host.gpus):
        table.add_row("", "", f"GPU {number}: {describe_gpu(gpu)}")
    return table


def render_servers(feeds: Sequence[Feed], width: int) -> FittedTable:
    """Render a line for each server.

    Each line shows the median latencies of the model that generated the most tokens.
    """
    columns = ("server", "ok/s", "tok/s", "TTFT ms", "ITL ms", "batch", "wait", "KV", "CPU")
    room = max(width - 76, 6)
    cells = [
        (*_server_cells(feed), sparkline(feed.trends.get("tokens/s", ()), room)) for feed in feeds
    ]
    return FittedTable((*columns, "trend"), cells, is_numeric=True)


def _server_cells(feed: Feed) -> list[str]:
    rows = _client_models(feed.summary) if feed.summary else []
    busiest = max(rows, key=lambda row: row.num_generated_tokens or 0, default=None)
    return [
        feed.address,
        _figure(feed.last("requests/s")),
        _figure(feed.last("tokens/s")),
        show_latency(busiest.ttft if busiest else None)[0],
        show_latency(busiest.itl if busiest else None)[0],
        _figure(feed.last("batch")),
        _figure(feed.last("waiting")),
        percent(feed.last("KV cache")),
        percent(feed.last("CPU")),
    ]


def _figure(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.0f}" if value >= 100 or float(value).is_integer() else f"{value:.1f}"


def _render_problem(feed: Feed, *, is_named: bool) -> Text:
    return _line(f"{feed.address}: {feed.problem}" if is_named else feed.problem, True)


def _line(words: str, is_bad: bool) -> Text:
    from rich.text import Text

    return Text(words, style="bold red" if is_bad else "")
