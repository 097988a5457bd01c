"""Commands with a log, and reading logs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from tests.waiting import is_gone, wait_until
from trtllm_serve_cli.processes import (
    CommandResult,
    end_of_lines,
    exit_on_signals,
    follow_lines,
    last_lines,
    run_captured,
    run_logged,
    run_streamed,
)


def is_open_at(path: Path, position: int) -> bool:
    files = psutil.Process().open_files()
    return any((file.path, file.position) == (str(path), position) for file in files)


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_output_goes_to_the_log_and_the_callback(tmp_path: Path) -> None:
    seen: list[str] = []
    code = "import sys; print('out é', flush=True); print('err', file=sys.stderr); sys.exit(7)"
    assert run_logged(python(code), tmp_path / "log", on_line=seen.append) == 7
    assert seen == ["out é", "err"]
    assert (tmp_path / "log").read_text() == "out é\nerr\n"


def test_output_is_appended_to_the_log(tmp_path: Path) -> None:
    for word in ("one", "two"):
        run_logged(python(f"print({word!r})"), tmp_path / "log")
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


def test_invalid_utf8_is_replaced(tmp_path: Path) -> None:
    code = r"import sys; sys.stdout.buffer.write(b'\xff\n')"
    assert run_logged(python(code), tmp_path / "log") == 0
    assert (tmp_path / "log").read_text() == "\ufffd\n"


def test_command_gets_the_environment(tmp_path: Path) -> None:
    run_logged(python("import os; print(os.environ['A'])"), tmp_path / "log", environ={"A": "b"})
    assert (tmp_path / "log").read_text() == "b\n"


def test_signal_is_a_negative_exit_code(tmp_path: Path) -> None:
    code = "import os; os.kill(os.getpid(), 9)"
    assert run_logged(python(code), tmp_path / "log") == -signal.SIGKILL


def test_missing_program(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        run_logged(("/no/such/program",), tmp_path / "log")


def test_interrupt_calls_stop_while_the_command_is_running(tmp_path: Path) -> None:
    pids: list[int] = []
    were_running: list[bool] = []

    def interrupt(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    def stop() -> None:
        were_running.append(not is_gone(pids[0]))
        raise RuntimeError("stop failed")

    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with pytest.raises(RuntimeError, match="stop failed"):
        run_logged(python(code), tmp_path / "log", on_line=interrupt, stop=stop)
    assert (were_running, is_gone(pids[0])) == ([True], True)


def test_interrupt_stops_the_command(tmp_path: Path) -> None:
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with pytest.raises(KeyboardInterrupt):
        run_logged(python(code), tmp_path / "log", on_line=interrupt)
    assert is_gone(pids[0])


COMMAND_WITH_CHILD = (  # a command with a child that ignores SIGTERM; it prints both pids
    "import os, subprocess, sys, time\n"
    "code = 'import signal, time; signal.signal(15, signal.SIG_IGN); print(1); time.sleep(600)'\n"
    "child = subprocess.Popen((sys.executable, '-uc', code), stdout=subprocess.PIPE)\n"
    "child.stdout.read(1)\n"
    "print(os.getpid(), child.pid, flush=True)\n"
)


def test_interrupt_stops_the_children_of_the_command(tmp_path: Path) -> None:
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.extend(map(int, line.split()))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_logged(
            python(f"{COMMAND_WITH_CHILD}time.sleep(600)"), tmp_path / "log", on_line=interrupt
        )
    wait_until(lambda: all(is_gone(pid) for pid in pids))


def test_nothing_outlives_the_command(tmp_path: Path) -> None:
    """Check a child that holds the output of the command open."""
    code = (
        "import subprocess, sys; sleep = 'import time; time.sleep(600)'\n"
        "print(subprocess.Popen((sys.executable, '-c', sleep)).pid)"
    )
    assert run_logged(python(code), tmp_path / "log") == 0
    wait_until(lambda: is_gone(int((tmp_path / "log").read_text())))


def test_log_keeps_the_last_state_of_a_progress_bar(tmp_path: Path) -> None:
    seen: list[str] = []
    code = r"print('\r 0%\r 50%\r100%\ndone\r\n 3%\r 4%', end='')"
    assert run_logged(python(code), tmp_path / "log", on_line=seen.append) == 0
    assert [line for line in seen if line] == [" 0%", " 50%", "100%", "done", " 3%", " 4%"]
    assert (tmp_path / "log").read_bytes() == b"100%\ndone\n 4%\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_runs_the_cleanup_of_the_caller(tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "log"
    inner = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    outer = (
        "import sys; from pathlib import Path; from trtllm_serve_cli.processes import *\n"
        "try:\n"
        " with exit_on_signals():\n"
        f"  run_logged((sys.executable, '-c', {inner!r}), Path({str(log)!r}))\n"
        "finally: print('cleared away')"
    )
    with subprocess.Popen(python(outer), stdout=subprocess.PIPE, text=True) as caller:
        wait_until(lambda: last_lines(log, 1))
        caller.send_signal(number)
        assert caller.communicate(timeout=60) == ("cleared away\n", None)
    assert caller.returncode == 128 + number
    assert is_gone(int(last_lines(log, 1)[0]))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_exit_that_python_discards_is_raised_again() -> None:
    class Finalizer:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as ended, exit_on_signals():
        Finalizer()
        threading.Event().wait()
    assert ended.value.code == 128 + signal.SIGTERM


def test_discarded_exit_is_raised_at_the_end_of_the_block() -> None:
    with pytest.raises(SystemExit), exit_on_signals(), contextlib.suppress(SystemExit):
        signal.raise_signal(signal.SIGTERM)


def test_further_signals_do_not_interrupt_the_cleanup() -> None:
    has_cleaned_up = False
    with pytest.raises(SystemExit), exit_on_signals():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            for _ in range(3):
                signal.raise_signal(signal.SIGTERM)
            has_cleaned_up = True
    assert has_cleaned_up


def test_sighup_ignored_by_nohup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with exit_on_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_command_does_not_outlive_a_killed_caller(tmp_path: Path) -> None:
    log = tmp_path / "log"
    inner = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    outer = (
        "import sys; from pathlib import Path; from trtllm_serve_cli.processes import run_logged\n"
        f"run_logged((sys.executable, '-c', {inner!r}), Path({str(log)!r}))"
    )
    with subprocess.Popen(python(outer)) as caller:
        wait_until(lambda: last_lines(log, 1))
        caller.kill()
    wait_until(lambda: is_gone(int(last_lines(log, 1)[0])))


@pytest.mark.parametrize(
    ("text", "count", "since", "lines"),
    [
        ("a\nb\nc\n", 2, 0, ["b", "c"]),
        ("a\n\n  \nb", 5, 0, ["a", "b"]),
        ("", 3, 0, []),
        ("old\nnew\n", 5, 4, ["new"]),
    ],
)
def test_last_lines(tmp_path: Path, text: str, count: int, since: int, lines: list[str]) -> None:
    (tmp_path / "log").write_text(text)
    assert last_lines(tmp_path / "log", count, since=since) == lines


def test_last_lines_of_a_long_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"{number}\n" for number in range(100_000)))
    assert last_lines(tmp_path / "log", 2) == ["99998", "99999"]


@pytest.mark.parametrize("incomplete", ["", "ha", "h" * 5000])
def test_end_of_the_complete_lines_of_a_log(tmp_path: Path, incomplete: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"a\nb\n{incomplete}")
    end = end_of_lines(log)
    assert (end, last_lines(log, 5, until=end)) == (4, ["a", "b"])
    assert last_lines(log, 5, since=2, until=end) == ["b"]
    assert last_lines(log, 5, since=9, until=end) == []


def test_log_without_a_complete_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("ha")
    assert (end_of_lines(tmp_path / "log"), end_of_lines(tmp_path / "none")) == (0, 0)


def test_last_lines_without_a_log(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "none", 3) == []


def test_followed_log_has_complete_lines_after_truncation(tmp_path: Path) -> None:
    log, seen = tmp_path / "log", []
    log.write_text("old\n")
    lines = follow_lines(log, 4, poll_s=0.001)
    reader = threading.Thread(
        target=lambda: seen.extend(next(lines) for _ in range(3)), daemon=True
    )
    reader.start()
    wait_until(lambda: is_open_at(log, 4))
    with log.open("a") as file:
        for part in ("on", "e\ntw", "o\nunfinished"):
            file.write(part)
            file.flush()
    wait_until(lambda: is_open_at(log, log.stat().st_size) or not reader.is_alive())
    log.write_text("new\n")
    reader.join(60)
    assert seen == ["one", "two", "new"]


def test_result_of_a_short_command() -> None:
    assert run_captured(("no-such-program",), 60) is None
    assert run_captured(("sh", "-c", "echo out"), 60) == CommandResult(0, "out\n")
    failed = run_captured(("sh", "-c", "echo first >&2; echo last >&2; exit 3"), 60)
    assert failed is not None
    assert (failed.code, failed.failure) == (3, "last")
    late = run_captured(("sleep", "60"), 0.1)
    assert late is not None
    assert (late.code, late.failure) == (None, "it timed out")
    assert CommandResult(4).failure == "exit code 4"


def test_streamed_output_is_forwarded_and_its_tail_returned() -> None:
    shown: list[bytes] = []
    code = (
        "import sys; sys.stdout.buffer.write(b'\\x1b[31mred\\x1b[0m\\rx' * 4000);"
        "print('why', file=sys.stderr); sys.exit(3)"
    )
    exit_code, tail = run_streamed(python(code), shown.append)
    assert (exit_code, len(b"".join(shown)), "\x1b" in tail) == (3, 4000 * 14 + 4, False)
    assert len(tail) < 16 * 1024


def test_streamed_command_runs_on_a_terminal() -> None:
    code = "import os, sys; print(os.get_terminal_size(1), sys.stderr.isatty())"
    size = os.terminal_size((77, 11))
    _, tail = run_streamed(python(code), lambda text: None, terminal=size)
    assert tail == "os.terminal_size(columns=77, lines=11) True\r\n"


def test_interrupt_stops_a_streamed_command() -> None:
    pids: list[int] = []

    def interrupt(text: bytes) -> None:
        pids.append(int(text))
        raise KeyboardInterrupt

    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with pytest.raises(KeyboardInterrupt):
        run_streamed(python(code), interrupt)
    assert is_gone(pids[0])
