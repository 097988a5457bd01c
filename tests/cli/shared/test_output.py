"""Printing of results, messages and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.errors import TllmError

Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [(0, "0 bytes"), (1 << 10, "1.0 KiB"), (98_362_432, "93.8 MiB"), (3 << 29, "1.5 GiB"),
     (1 << 41, "2.0 TiB")],
)  # fmt: skip
def test_memory_is_shown_in_binary_units(num_bytes: int, shown: str) -> None:
    assert output.show_memory(num_bytes) == shown


def test_messages_go_to_stderr(capsys: Captured) -> None:
    output.notify("hello")
    assert capsys.readouterr() == ("", "hello\n")


def test_json_keeps_every_script_and_takes_paths(capsys: Captured) -> None:
    output.show_json({"text": "é 日本", "path": Path("/a")})
    out, err = capsys.readouterr()
    assert (json.loads(out), "日本" in out, err) == ({"text": "é 日本", "path": "/a"}, True, "")


def test_cells_are_not_interpreted_as_markup(capsys: Captured) -> None:
    output.show_table(["name[bold]"], [["[red]x[/red]"], ["[/]"]])
    out, _ = capsys.readouterr()
    assert [line.strip() for line in out.splitlines() if "[" in line] == [
        "name[bold]", "[red]x[/red]", "[/]",
    ]  # fmt: skip


def test_long_cells_fold_and_lose_nothing(capsys: Captured, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    output.show_table(["source"], [["x" * 100]])
    assert capsys.readouterr().out.count("x") == 100


def test_error_is_three_lines_on_stderr(capsys: Captured) -> None:
    output.show_error(TllmError("[No] such\nthing.", why="it [is]", next_step="do " + "x" * 200))
    assert capsys.readouterr() == (
        "", "Error: [No] such\nthing.\n  Why: it [is]\n Next: do " + "x" * 200 + "\n",
    )  # fmt: skip


def test_control_characters_in_messages_are_escaped(capsys: Captured) -> None:
    foreign = "a\x1b]0;title\x07b\x9b2J"
    output.show_error(TllmError(foreign, why=foreign, next_step=foreign))
    output.notify(foreign)
    assert capsys.readouterr().err.count(r"a\x1b]0;title\x07b\x9b2J") == 4


def test_nothing_is_coloured_without_a_terminal(capsys: Captured) -> None:
    output.show_error(TllmError("No."))
    output.show_table(["a"], [["b"]])
    assert "\x1b" not in "".join(capsys.readouterr())


def test_table_in_a_pipe_has_one_line_for_each_row(capsys: Captured, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    output.show_table(["model", "source"], [["a", "x" * 100], ["b", "two words"]])
    assert capsys.readouterr().out.splitlines() == [
        "model  source", f"a      {'x' * 100}", "b      two words",
    ]  # fmt: skip


def test_indentation_leaves_room_on_a_narrow_terminal(monkeypatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    text = output.wrap("127.0.0.1:8000 is in use", first="problem  port  ", rest=" " * 26)
    assert text.splitlines()[1:] == [f"{' ' * 10}is in use"]
