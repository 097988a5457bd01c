"""Tests of the whole command line: help, exit codes and start-up."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from tests.cli.running import Tllm
from trtllm_serve_cli import __version__
from trtllm_serve_cli.cli import command_groups
from trtllm_serve_cli.cli.command_groups import walk_commands
from trtllm_serve_cli.cli.command_table import COMMAND_GROUPS, SYNONYMS
from trtllm_serve_cli.cli.main import app
from trtllm_serve_cli.repository.model import store

COMMANDS = tuple(
    words
    for words, command in walk_commands(typer.main.get_command(app))
    if words == ("metrics",) or not isinstance(command, TyperGroup)
)
HEAVY = {
    "filelock", "google.protobuf", "grpc", "huggingface_hub", "jinja2", "numpy", "openvino",
    "openvino_genai", "prometheus_client", "psutil", "pydantic", "requests", "rich.table",
    "tritonclient", "yaml",
    "trtllm_serve_cli.engine_kinds.plan_by_kind", "trtllm_serve_cli.sizing.plan",
    "trtllm_serve_cli.sources.hub.api", "trtllm_serve_cli.cli.bench.workload_commands",
}  # fmt: skip


@pytest.fixture
def tllm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tllm:
    return Tllm(monkeypatch, capsys)


def test_version(tllm: Tllm) -> None:
    assert tllm("--version") == (0, f"tllm {__version__}\n", "")


def test_help_lists_every_command(tllm: Tllm) -> None:
    code, out, _ = tllm("--help")
    assert code == 0
    for title, commands in COMMAND_GROUPS.items():
        lines = "".join(f"  {each.name:<8}  {each.summary}\n" for each in commands)
        assert f"\n{title}:\n{lines}" in out
    assert max(map(len, out.splitlines())) <= 80


def test_every_command_is_listed_once() -> None:
    listed = [each.name for group in COMMAND_GROUPS.values() for each in group]
    assert sorted(set(listed)) == sorted(listed)
    assert {words[0] for words in COMMANDS} == set(listed)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_of_every_command_has_an_example(tllm: Tllm, words: tuple[str, ...]) -> None:
    code, out, _ = tllm(*words, "--help")
    assert (code, f"Example:  tllm {' '.join(words)}" in out) == (0, True)


def test_only_the_named_command_is_created(tllm: Tllm, monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[str] = []
    monkeypatch.setattr(command_groups, "set_metavars", lambda each: created.append(each.name))
    tllm("bench", "sweep", "identity", "--help")
    assert created == ["bench", "sweep", "identity"]


def test_help_of_a_group_has_whole_sentences(tllm: Tllm) -> None:
    _, out, _ = tllm("bench", "--help")
    assert " ".join(out.partition("Commands:")[2].split()).startswith(
        "token-norm-dist Send prompts of random token ids with normally distributed lengths to "
        "`tensorrt_llm`."
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nonsense",), "No such command 'nonsense'"),
        (("list", "--nonsense"), "--nonsense"),
        (("import",), "No model was specified. Pass NAME"),
        (("import", "-m", "x", "--max-batch-size", "0"), "is not in the range 1<=x<="),
        (("import", "-m", "x", "--engine", "warp"), "'warp' is not one of"),
        (("start", "--http-port", "70000"), "is not in the range 1<=x<=65535"),
        (("metrics", "--interval", "nan"), "'--interval': nan is not a finite number"),
        (("stop", "--timeout", "inf"), "inf is not in the range 0<=x<=86400"),
        (("load", "m", "--timeout", "1e300"), "1e+300 is not in the range 1<=x<=86400"),
        (("bench", "trace", "x", "--speed", "inf"), "'--speed': inf is not a finite number"),
        (("remove",), "Pass NAME, --all or --engines."),
        (("infer", "What", "is"), "The prompt must be a single argument. Put the prompt in quotes"),
        (
            ("bench", "--concurrency", "4"),
            "Options must follow the command name, for example `tllm bench token-norm-dist "
            "--concurrency 4`.",
        ),
        (
            ("bench", "--concurrency", "4", "trace", "x.jsonl"),
            "for example `tllm bench trace --concurrency 4 x.jsonl`.",
        ),
        (
            ("bench", "--speed=2", "x.jsonl"),
            "for example `tllm bench trace --speed=2 x.jsonl`.",
        ),
        (("keys", "--nonsense"), "--nonsense"),
        (("metrics", "--nonsense"), "--nonsense"),
        (("remove", "a", "--all"), "NAME and --all cannot be used together."),
    ],
)
def test_wrong_usage_exits_with_2(tllm: Tllm, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = tllm(*arguments)
    assert (code, out, message in err) == (2, "", True)


@pytest.mark.parametrize("group", ["bench", "deploy", "keys", "lora"])
def test_group_without_a_command_prints_its_help(tllm: Tllm, group: str) -> None:
    _, out, err = tllm(group)
    assert out + err == tllm(group, "--help")[1]


@pytest.mark.parametrize(("synonym", "command"), SYNONYMS.items())
def test_command_of_another_tool_is_translated(tllm: Tllm, synonym: str, command: str) -> None:
    code, out, err = tllm(synonym, "demo")
    assert (code, out) == (2, "")
    assert f"No such command '{synonym}'. Use `tllm {command}`." in err
    assert "Did you mean" not in err


def test_synonyms_name_only_commands_that_exist() -> None:
    names = {words[0] for words in COMMANDS}
    assert set(SYNONYMS.values()) <= names and not names & set(SYNONYMS)


def test_user_errors_exit_with_3(tllm: Tllm) -> None:
    assert tllm("start") == (
        3, "", "Error: No model has been imported yet.\n Next: run `tllm import -m demo`\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("number", "next_step"),
    [
        (errno.ENOSPC, "free disk space, or set TLLM_HOME to a folder on another disk"),
        (errno.EDQUOT, "free disk space, or set TLLM_HOME to a folder on another disk"),
        (errno.EIO, "check the disk or network file system, or set TLLM_HOME to "),
        (errno.EACCES, "correct the permissions, or set TLLM_HOME to a folder that you can "),
        (errno.EPERM, "correct the permissions, or set TLLM_HOME to a folder that you can "),
        (errno.EROFS, "set TLLM_HOME to a folder that you can write to"),
    ],
)
def test_disk_errors_exit_with_3(
    tllm: Tllm, monkeypatch: pytest.MonkeyPatch, number: int, next_step: str
) -> None:
    def refuse(home: object, **options: object) -> None:
        raise OSError(number, os.strerror(number), "/some/file")

    monkeypatch.setattr(store, "list_models", refuse)
    code, out, err = tllm("list")
    assert (code, out) == (3, "")
    assert err.startswith(
        "Error: /some/file could not be read or written.\n"
        f"  Why: {os.strerror(number)}\n"
        f" Next: {next_step}"
    )


def test_path_that_is_too_long_exits_with_3(tllm: Tllm) -> None:
    code, _, err = tllm("import", "-m", "mine", "-s", f"local:/{'a' * 3000}")
    message = "Error: The path or a file name in it is too long."
    assert (code, err.partition("\n")[0]) == (3, message)


def test_path_that_is_too_long_may_be_unknown(tllm: Tllm, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(home: object, **options: object) -> None:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))

    monkeypatch.setattr(store, "list_models", refuse)
    code, _, err = tllm("list")
    assert (code, err) == (
        3,
        "Error: The path or a file name in it is too long.\n"
        "  Why: File name too long\n"
        " Next: shorten the path or the file name\n",
    )


def test_path_that_is_not_utf_8_exits_with_3(tllm: Tllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "list_models", lambda home, **options: "/home/\udcff".encode())
    code, _, err = tllm("list")
    assert (code, err.partition("\n")[0]) == (3, "Error: A path or an argument is not valid UTF-8.")


def test_home_that_is_a_file_exits_with_3(
    tllm: Tllm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "m.gguf").touch()
    monkeypatch.setenv("TLLM_HOME", str(tmp_path / "file"))
    code, _, err = tllm("import", "-m", "demo")
    assert (code, "Traceback" in err, "Not a directory" in err) == (3, False, True)


def test_bug_keeps_its_traceback(tllm: Tllm, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(home: object, **options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(store, "list_models", fail)
    with pytest.raises(ZeroDivisionError):
        tllm("list")


def test_interrupt_exits_with_130(home_folder: Path) -> None:
    """Interrupt an import that waits for another import of the same model."""
    import filelock

    (home_folder / "locks").mkdir(parents=True)
    command = (sys.executable, "-m", "trtllm_serve_cli.cli.main", "import", "-m", "demo")
    with (
        filelock.FileLock(home_folder / "locks" / "demo.lock"),
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stderr is not None
        assert "Waiting for another tllm process" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert (process.returncode, "Traceback" in rest) == (130, False)


def list_imports(arguments: list[str]) -> set[str]:
    """Run a command and return the names of the modules that it imports."""
    code = (
        "import json, sys\nfrom trtllm_serve_cli.cli.main import main\n"
        f"sys.argv = ['tllm', *{arguments!r}]\n"
        "try: main()\nexcept SystemExit as left: assert not left.code\n"
        "print(json.dumps(list(sys.modules)))"
    )
    ran = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    return set(json.loads(ran.stdout.splitlines()[-1]))


@pytest.mark.parametrize("arguments", [["--help"], ["import", "--help"], ["list"], ["--version"]])
def test_quick_commands_import_nothing_heavy(arguments: list[str]) -> None:
    assert HEAVY & list_imports(arguments) == set()


def test_commands_that_read_plans_do_not_import_the_planning(home_folder: Path) -> None:
    imported = list_imports(["status"])
    assert imported & HEAVY == {"psutil"}
    package = "trtllm_serve_cli"
    planning = tuple(f"{package}.{each}." for each in ("launch.clusters", "build", "importing"))
    assert [each for each in imported if each.startswith(planning)] == []


def test_finding_a_server_needs_nothing_that_windows_lacks(home_folder: Path) -> None:
    """Check `tllm infer`, which runs on Windows also without -u, as `bench` and `metrics` do."""
    code = (
        "import signal, sys\nfor name in ('SIGKILL', 'SIGHUP', 'SIGUSR1'): delattr(signal, name)\n"
        "from trtllm_serve_cli.cli.main import main\n"
        "sys.argv = ['tllm', 'infer', 'hello']\nmain()"
    )
    ran = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (
        3, "Error: No server is running.\n Next: run `tllm import -m demo`\n",
    )  # fmt: skip


@pytest.mark.parametrize("arguments", [("list", "--catalog", "--json"), ("list", "--catalog"),
                                       ("--help",), ("doctor",)])  # fmt: skip
def test_closed_pipe_exits_with_141(arguments: tuple[str, ...]) -> None:
    """Close stdout early, as in `tllm list --catalog | head -1`."""
    command = (sys.executable, "-m", "trtllm_serve_cli.cli", *arguments)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_interrupt_during_the_import_has_no_traceback() -> None:
    code = (
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from trtllm_serve_cli.cli.__main__ import main\n"
        "sys.argv = ['tllm', 'list']\nmain()"
    )
    ran = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (130, "")


def test_exit_does_not_search_for_garbage() -> None:
    code = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print(len(gc.get_objects()), gc.get_freeze_count()))\n"
        "from trtllm_serve_cli.cli.__main__ import main\n"
        "sys.argv = ['tllm', '--version']\nmain()"
    )
    ran = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    num_searched, num_frozen = map(int, ran.stdout.splitlines()[-1].split())
    assert num_searched < 100 < num_frozen


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error(closed: str, home_folder: Path) -> None:
    shell = ("sh", "-c", f'exec "$0" -m trtllm_serve_cli.cli list {closed}', sys.executable)
    ran = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert (ran.returncode, "Traceback" in ran.stderr) == (0, False)


def test_deleted_working_folder_exits_with_3(
    tllm: Tllm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    code, _, err = tllm("import", "-m", "demo", "-s", "gguf:model.gguf")
    assert (code, err.splitlines()[0]) == (3, "Error: The current folder no longer exists.")


@pytest.mark.parametrize("arguments", [("statr",), ("bench", "sweeep")])
def test_a_misspelt_command_gets_one_suggestion(tllm: Tllm, arguments: tuple[str, ...]) -> None:
    _, _, err = tllm(*arguments)
    assert err.count("Did you mean") == 1


def test_help_lists_options_in_groups(tllm: Tllm) -> None:
    _, out, _ = tllm("start", "--help")
    titles = [line for line in out.splitlines() if line.endswith(":") and line[0] != " "]
    assert titles == [
        "Arguments:", "Options:", "Server:", "Triton:", "Processes and containers:",
        "OpenAI-compatible API:", "TLS:", "Logs and traces:",
    ]  # fmt: skip
    assert out.index("--json") < out.index("Server:") < out.index("--http-port")


def test_help_starts_with_the_group_of_the_first_option(tllm: Tllm) -> None:
    _, out, _ = tllm("infer", "--help")
    assert out.index("Target:") < out.index("--interface") < out.index("Options:")


def test_help_has_no_group_of_a_single_option(tllm: Tllm) -> None:
    _, out, _ = tllm("run", "--help")
    assert "Server:" not in out
    assert out.index("Options:") < out.index("  --http-port")


def test_help_explains_arguments(tllm: Tllm) -> None:
    _, out, _ = tllm("validate", "--help")
    assert "[NAME]  Model name. Equivalent to --model NAME." in out
