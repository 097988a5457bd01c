"""The progress display of `tllm import` and `tllm build`."""

from __future__ import annotations

import signal

import pytest
import typer

from trtllm_serve_cli.cli.shared.exits import INTERRUPTED
from trtllm_serve_cli.cli.shared.progress_ui import WorkDisplay, show_work
from trtllm_serve_cli.sources.progress import FileProgress, Progress


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> WorkDisplay:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return WorkDisplay(is_live=True)


def test_only_notices_are_shown_without_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    display = WorkDisplay(is_live=False)
    display.notify("Make it …")
    display.on_line("Loading checkpoint shards: 3/8")
    display.notify("  took 2.0 s")
    assert capsys.readouterr() == ("", "Make it …\n  took 2.0 s\n")


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (["$ convert --model m"], ["0:00:00"]),
        (["$ convert", "reading  it"], ["0:00:00", "reading it"]),
        (["reading", "Loading checkpoint shards: 2/8", "a word"],
         ["25%", "Loading checkpoint shards"]),
        (["[TRT] [I] Engine generation completed in 3.0 seconds."], ["engine generated"]),
        (["[bold]markup[/] is a word"], ["[bold]markup[/] is a word"]),
    ],
)  # fmt: skip
def test_terminal_shows_how_far_a_step_is(
    live: WorkDisplay, capsys: pytest.CaptureFixture[str], lines: list[str], shown: list[str]
) -> None:
    for line in lines:
        live.on_line(line)
    live.notify("done")
    err = capsys.readouterr().err
    assert [text for text in shown if text not in err] == []
    assert err.endswith("done\n")


def test_progress_restarts_with_the_next_step(
    live: WorkDisplay, capsys: pytest.CaptureFixture[str]
) -> None:
    live.on_line("Loading checkpoint shards: 2/8")
    live.notify("next")
    capsys.readouterr()
    live.on_line("words")
    live.stop()
    err = capsys.readouterr().err
    assert ("words" in err, "25%" in err) == (True, False)


def test_download_is_shown_until_it_is_over(
    live: WorkDisplay, capsys: pytest.CaptureFixture[str]
) -> None:
    assert live.watch is not None
    live.watch(Progress("Downloading", (FileProgress("a.safetensors", 1, 4, 1.0),), 1.0))
    live.watch(Progress("Downloading", (FileProgress("a.safetensors", 4, 4, 1.0),), 1.0))
    assert "25 %" in capsys.readouterr().err
    assert WorkDisplay(is_live=False).watch is None


def test_interrupt_is_an_exit_code() -> None:
    with pytest.raises(typer.Exit) as raised, show_work():
        raise KeyboardInterrupt
    assert raised.value.exit_code == INTERRUPTED


def test_sigterm_is_an_exit_code() -> None:
    with pytest.raises(SystemExit) as raised, show_work():
        signal.raise_signal(signal.SIGTERM)
    assert raised.value.code == 143
