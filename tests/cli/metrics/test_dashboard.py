"""The live screen of `tllm metrics --watch`, on a terminal and in parts."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from typing import Any

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.cli.terminal import Terminal, run_at_terminal
from tests.fakes.triton.server import FakeTriton
from tests.samples.metrics_pages import OURS, PAGE
from trtllm_serve_cli.cli.metrics.dashboard import Feed, render_dashboard, sparkline
from trtllm_serve_cli.errors import NoServer
from trtllm_serve_cli.metrics.parse import parse_metrics


@pytest.mark.parametrize(
    ("values", "width", "maximum", "drawn"),
    [
        ([0, 1, 2, 4], 10, None, "▁▃▅█"),
        ([1, 2, 3], 2, None, "▆█"),
        ([0.5, None, 1.0], 5, 1.0, "▅ █"),
        ([0, 0], 5, None, "▁▁"),
        ([], 5, None, ""),
    ],
    ids=["to the highest", "the last", "with a gap", "at rest", "nothing yet"],
)
def test_sparkline(
    values: list[float | None], width: int, maximum: float | None, drawn: str
) -> None:
    assert sparkline(values, width, maximum) == drawn


@given(st.lists(st.none() | st.floats(0, 1e9)), st.integers(1, 50))
def test_sparkline_has_a_column_for_each_value(values: list[float | None], width: int) -> None:
    assert len(sparkline(values, width)) == min(len(values), width)


def feed(*pages: str, interval_s: float = 2.0) -> Feed:
    made = Feed("a:8002", interval_s)
    for number, page in enumerate(pages):
        made.add_scrape(parse_metrics(page, number * interval_s))
    return made


def drawn(*feeds: Feed, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(render_dashboard(feeds, width, 2.0))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


LATER = OURS.replace("} 593\n", "} 693\n").replace("} 7\n", "} 9\n")


@pytest.mark.parametrize("width", [80, 120, 200])
def test_one_server_fits_the_terminal(width: int) -> None:
    lines = drawn(feed(OURS, LATER), width=width)
    assert max(map(len, lines)) <= width
    assert len(lines) <= 24


@pytest.mark.parametrize("width", [1, 7])
def test_title_is_truncated_in_a_tiny_terminal(width: int) -> None:
    assert drawn(feed(OURS), width=width)[0] == "a:8002"[:width]


def test_rates_are_of_two_scrapes() -> None:
    lines = drawn(feed(OURS, LATER))
    assert "tokens/s          50   █" in lines
    assert "active             9  ▇█" in lines


@pytest.mark.parametrize("interval_s", [2.0, 30.1, 300.0])
def test_table_has_rates_at_any_interval(interval_s: float) -> None:
    shown = feed(OURS, OURS, LATER, interval_s=interval_s)
    assert shown.summary is not None
    rates = [row.tokens_per_s for row in shown.summary.models if row.tokens_per_s is not None]
    since_s = interval_s * (2 if interval_s < 15 else 1)
    assert rates == [pytest.approx(100 / since_s)]


def test_reset_counter_makes_no_negative_rate() -> None:
    shown = feed(OURS, OURS.replace("} 593\n", "} 10\n"))
    assert shown.last("tokens/s") == 5.0


def test_failed_scrape_is_shown_and_values_stay() -> None:
    shown = feed(OURS, LATER)
    shown.add_scrape(NoServer("No server publishes metrics at a:8002.", why="refused"))
    lines = drawn(shown)
    assert any("No server publishes metrics at a:8002. Why: refused." in line for line in lines)
    assert any(line.startswith(" demo") for line in lines)
    shown.add_scrape(parse_metrics(LATER, 100.0))
    assert not shown.problem


def test_scrape_slower_than_the_interval_is_shown() -> None:
    shown = feed(OURS)
    shown.add_scrape(parse_metrics(OURS, 7.0))
    assert shown.problem == (
        "The server is slow: the last two scrapes were 7.0 s apart instead of 2 s."
    )


def test_several_servers_have_a_line_each() -> None:
    lines = drawn(feed(OURS, LATER), feed(PAGE))
    assert sum("a:8002" in line for line in lines) == 2
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("feeds", [[feed(OURS, LATER)], [feed(OURS, LATER), feed(PAGE)]])
def test_latencies_have_a_unit(feeds: list[Feed]) -> None:
    heading = next(line for line in drawn(*feeds) if "TTFT" in line)
    assert all(re.search(rf"{name}( p50)? ms", heading) for name in ("TTFT", "ITL"))


@pytest.fixture
def triton() -> Iterator[FakeTriton]:
    with FakeTriton() as fake:
        fake.metrics_pages = [OURS]
        yield fake


def watch(terminal: Terminal, stream: pyte.ByteStream, screen: pyte.Screen) -> Callable[..., None]:
    def until(*texts: str) -> None:
        while not all(text in "\n".join(screen.display) for text in texts):
            terminal.feed(stream)

    return until


def test_screen_survives_resizing_and_a_broken_server(triton: FakeTriton) -> None:
    screen = pyte.Screen(80, 24)
    stream = pyte.ByteStream(screen)
    words = ("metrics", "--watch", "--interval", "0.2", "-u", triton.endpoint.metrics)
    with run_at_terminal(*words, kind="xterm-256color") as terminal:
        until = watch(terminal, stream, screen)
        until("demo", "KV cache", "q quits")
        assert screen.display[0].rstrip().endswith("q quits")
        screen.resize(60, 200)
        terminal.resize(200, 60)
        until(f"{'q quits':>100}")
        triton.metrics_pages = ["half a pa"]
        until("The metrics page is not valid.")
        triton.metrics_pages = [LATER]
        until("active             9")
        terminal.type("q")
        assert terminal.wait() == 0


class Screen(pyte.Screen):
    """Screen that records when it is cleared."""

    def __init__(self, columns: int, lines: int) -> None:
        self.cleared: list[int] = []
        super().__init__(columns, lines)

    def erase_in_display(self, how: int = 0, *arguments: Any, **options: Any) -> None:
        self.cleared.append(how)
        super().erase_in_display(how, *arguments, **options)


def test_screen_is_redrawn_without_being_cleared(triton: FakeTriton) -> None:
    screen = Screen(80, 24)
    words = ("metrics", "--watch", "--interval", "0.1", "-u", triton.endpoint.metrics)
    with run_at_terminal(*words, kind="xterm-256color") as terminal:
        watch(terminal, pyte.ByteStream(screen), screen)("demo")
        screen.cleared.clear()
        stream = pyte.ByteStream(screen)
        for _ in range(5):
            terminal.feed(stream)
        terminal.type("q")
        assert terminal.wait() == 0
    assert screen.cleared == []
