"""The model's name as an argument and with -m."""

from __future__ import annotations

import pytest
import typer

from tests.cli.running import Tllm
from tests.samples.repositories import add_model
from trtllm_serve_cli.cli.command_groups import walk_commands
from trtllm_serve_cli.cli.main import app
from trtllm_serve_cli.paths import Home

# Commands with -m whose first argument is something else: a prompt, a file or a subcommand.
_OTHER_ARGUMENT = {"infer", "bench", "metrics", "gateway"}


@pytest.fixture
def tllm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tllm:
    return Tllm(monkeypatch, capsys)


def test_every_command_for_a_model_accepts_an_argument_and_an_option() -> None:
    accepted = {}
    for names, command in walk_commands(typer.main.get_command(app)):
        has_option = any("-m" in each.opts for each in command.params)
        has_argument = any(
            "NAME" in (each.metavar or "") and each.param_type_name == "argument"
            for each in command.params
        )
        if names[0] not in _OTHER_ARGUMENT | {"keys"}:
            accepted[" ".join(names)] = (has_argument, has_option)
    one_form = [name for name, forms in accepted.items() if forms[0] != forms[1]]
    assert one_form == []
    for_models = {name for name, forms in accepted.items() if all(forms)}
    assert for_models >= {
        "import", "build", "plan", "show", "set", "validate", "export", "remove", "start", "stop",
        "restart", "status", "logs", "load", "unload", "deploy slurm", "deploy k8s",
    }  # fmt: skip


@pytest.mark.parametrize("words", [("a",), ("-m", "a"), ("a", "-m", "a")])
def test_both_forms_select_the_model(tllm: Tllm, home: Home, words: tuple[str, ...]) -> None:
    for name in ("a", "b"):
        add_model(home, name)
    assert tllm("show", *words)[1].startswith("a: engine kind")
    assert tllm("remove", *words, "--yes")[2].startswith("Removed a.")


def test_set_accepts_both_forms(tllm: Tllm, home: Home) -> None:
    for name in ("a", "b"):
        add_model(home, name)
    for words in (("a",), ("-m", "a")):
        assert tllm("set", *words, "max_queue_size=7")[0] == 0
    assert "name different models" in tllm("set", "a", "-m", "b", "max_queue_size=7")[2]


def test_different_names_are_a_usage_error(tllm: Tllm) -> None:
    code, _, err = tllm("stop", "a", "-m", "b")
    assert (code, "a and -m b name different models. Omit one of them." in err) == (2, True)


def test_load_requires_a_name(tllm: Tllm) -> None:
    code, _, err = tllm("load")
    assert (code, "No model was specified. Pass NAME." in err) == (2, True)


def test_status_of_one_model(tllm: Tllm, home: Home) -> None:
    add_model(home, "mine")
    message = "No server is running for mine. Next: run `tllm start -m mine`\n"
    assert tllm("status", "mine") == (0, "", message)
    assert tllm("status", "mine", "--json") == (0, '{\n  "servers": []\n}\n', "")


def test_status_of_an_unknown_model_is_an_error(tllm: Tllm, home: Home) -> None:
    add_model(home, "mine")
    for name, next_step in {
        "min": "run the command again with mine, or list the imported models with `tllm list`",
        "dem": "run `tllm import -m demo`, or list the imported models with `tllm list`",
    }.items():
        for words in ((name,), ("-m", name, "--json"), (name, "--startup")):
            code, out, err = tllm("status", *words)
            assert (code, out) == (3, "")
            assert err.startswith(f"Error: No server is running for {name}.\n  Why: no imported ")
            assert err.endswith(f" Next: {next_step}\n")
