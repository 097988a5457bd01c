"""Tests of the commands `tllm show`, `set` and `validate`."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import NoReturn

import pytest

from tests.cli.running import Tllm
from tests.samples.launch_plans import fake_plan
from tests.samples.repositories import add_model, copy_upstream
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.importing import importer
from trtllm_serve_cli.importing.declaration import Declaration
from trtllm_serve_cli.launch.server_state import PLAN_FILE, describe_supervisor, write_state
from trtllm_serve_cli.paths import Home, find_home


@pytest.fixture
def tllm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tllm:
    return Tllm(monkeypatch, capsys)


@pytest.fixture
def home(home_folder: Path) -> Home:
    return find_home()


def test_set_prints_the_changes(tllm: Tllm, home: Home) -> None:
    add_model(home, "a")
    code, out, err = tllm("set", "a", "max_beam_width=2", "max_queue_size=5")
    rows = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines() if "max_" in line]
    assert (code, err, rows) == (
        0,
        "",
        [
            ["max_beam_width", "tensorrt_llm", "4", "2"],
            ["max_queue_size", "preprocessing", "not set; default: 0", "5"],
            ["max_queue_size", "tensorrt_llm", "not set; default: 0", "5"],
        ],
    )
    assert tllm("set", "max_beam_width=2") == (
        0, "", "Already set; nothing changed.\n",
    )  # fmt: skip


def test_set_as_json(tllm: Tllm, home: Home) -> None:
    path = add_model(home, "a").path
    code, out, err = tllm("set", "max_beam_width=2", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "repository": str(path),
        "changes": [
            {
                "parameter": "max_beam_width", "model": "tensorrt_llm",
                "place": "parameters.max_beam_width", "old": "4", "new": "2",
            }
        ],
        "needs_restart": [],
    }  # fmt: skip


# A setting, and its value in a folder that contains `eng`.
PATHS = [
    ("tokenizer_dir=./eng", "{folder}/eng"),
    ("tokenizer_dir=eng", "{folder}/eng"),
    ("tokenizer_dir=../eng", "{folder}/../eng"),
    ("tokenizer_dir=~/eng", "/home/of/mine/eng"),
    ("tokenizer_dir=/eng", "/eng"),
    ("tokenizer_dir=org/name", "org/name"),
    ("engine_python=eng/bin/python3", "{folder}/eng/bin/python3"),
    ("engine_python=python3", "python3"),
    ("engine_python=", ""),
    ("lora_prefetch_dir=to/come", "{folder}/to/come"),
    ("tensorrt_llm_model_name=eng", "eng"),
]


@pytest.mark.parametrize(("pair", "expected"), PATHS)
@pytest.mark.parametrize("origin", ["set", "param", "file"])
def test_relative_paths_start_at_their_origin(
    tllm: Tllm, home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    origin: str, pair: str, expected: str,
) -> None:  # fmt: skip
    for folder in (tmp_path / "here", tmp_path / "there"):
        (folder / "eng" / "bin").mkdir(parents=True)
        (folder / "eng" / "bin" / "python3").touch()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", "/home/of/mine")
    add_model(home, "a")
    name, _, value = pair.partition("=")
    file = tmp_path / "there" / "tllm.yaml"
    file.write_text(f"model: {{name: a}}\nrepository: {{parameters: {{{name}: '{value}'}}}}\n")
    declarations: list[Declaration] = []

    def record(declaration: Declaration, *_: object, **__: object) -> NoReturn:
        declarations.append(declaration)
        raise BadInput("That is all.")

    monkeypatch.setattr(importer, "import_model", record)
    if origin == "set":
        tllm("set", "a", "engine_python=/else")
        assert tllm("set", "--repo", str(home.models / "a"), pair)[0] == 0
        found = known_values(tllm)[name]
    else:
        options = ("-m", "a", "--param", pair) if origin == "param" else ("-f", str(file))
        assert tllm("import", *options)[2] == "Error: That is all.\n"
        found = declarations[0].repository.parameters[name]
    folder = tmp_path / ("there" if origin == "file" else "here")
    assert found == expected.format(folder=folder)


@pytest.mark.parametrize("what", ["engine", "tokenizer"])
def test_set_refuses_a_required_folder_that_does_not_exist(
    tllm: Tllm, home: Home, what: str
) -> None:
    path = add_model(home, "a").path
    code, out, err = tllm("set", "a", f"{what}_dir=/no/such")
    assert (code, out) == (3, "")
    assert err.startswith(f"Error: The {what} folder /no/such does not exist.\n")
    assert "--repo DIR" in err
    assert tllm("set", "--repo", str(path), f"{what}_dir=/no/such")[0] == 0
    assert known_values(tllm)[f"{what}_dir"] == "/no/such"


def test_tokenizer_can_be_set_to_a_name_on_the_hub(tllm: Tllm, home: Home) -> None:
    add_model(home, "a")
    assert tllm("set", "a", "tokenizer_dir=org/name")[0] == 0


def known_values(tllm: Tllm) -> dict[str, str]:
    shown = json.loads(tllm("show", "a", "--json")[1])
    return {each["name"]: each["value"] for each in shown["parameters"]}


def test_set_names_the_server_to_restart(tllm: Tllm, home: Home) -> None:
    add_model(home, "m")
    plan = dataclasses.replace(fake_plan(home.servers), repository=home.models / "m")
    plan.directory.mkdir(parents=True)
    (plan.directory / PLAN_FILE).write_text(plan.to_json())
    write_state(plan.directory, describe_supervisor("ready"))
    _, out, err = tllm("set", "m", "max_beam_width=2")
    assert err == ("A running server uses the old values. Next: tllm restart -m m\n")
    _, out, _ = tllm("set", "m", "max_beam_width=3", "--json")
    assert json.loads(out)["needs_restart"] == ["m"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("set", "a", "max_beam=2"), "Error: The 'max_beam' parameter does not exist."),
        (
            ("set", "a", "max_beam_width"),
            "Error: 'max_beam_width' does not have the form KEY=VALUE.",
        ),
        (("set", "a"), "Error: No parameter was specified."),
        (("set", "b", "max_beam_width=2"), "Error: No model named 'b' has been imported."),
        (("show", "a", "--repo", "x"), "Error: The name a and --repo x cannot be used together."),
        (("validate", "--repo", "/nowhere"), "Error: /nowhere is not a model repository."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_error_changes_nothing(
    tllm: Tllm, home: Home, arguments: tuple[str, ...], what: str
) -> None:
    path = add_model(home, "a").path / "tensorrt_llm" / "config.pbtxt"
    before = path.read_text()
    code, out, err = tllm(*arguments)
    assert (code, out, err.splitlines()[0], path.read_text()) == (3, "", what, before)


def test_show_explains_each_value_in_80_columns(tllm: Tllm, home: Home) -> None:
    add_model(home, "a")
    tllm("set", "max_beam_width=2")
    code, out, err = tllm("show", "a")
    assert (code, err) == (0, "")
    assert (
        "max_beam_width = 2  (set by `tllm set`; at import: 4)\n"
        "    Maximum beam width of a request.\n"
    ) in out  # fmt: skip
    assert "engine_python  (not set; default: Triton's Python interpreter)\n" in out
    paths = str(home.root)
    assert all(len(line) <= 80 for line in out.splitlines() if paths not in line)


def test_show_as_json(tllm: Tllm, home: Home) -> None:
    path = add_model(home, "a").path
    code, out, _ = tllm("show", "--json")
    shown = json.loads(out)
    parameters = {each["name"]: each for each in shown.pop("parameters")}
    assert (code, shown) == (0, {"model": "a", "engine": "openvino", "repository": str(path)})
    assert parameters["num_threads"] == {
        "name": "num_threads",
        "value": "0",
        "values": {"tensorrt_llm": "0"},
        "from": "default",
        "at_import": None,
        "explanation": "Number of engine threads. 0 selects one thread per core, or fewer if the "
        "container has a lower CPU limit.",
        "since": None,
    }


def test_copy_of_upstreams_repository_is_shown_and_changed(
    tllm: Tllm, home: Home, tmp_path: Path
) -> None:
    copy = str(copy_upstream(tmp_path / "copy"))
    assert "max_beam_width  (not set; default: 1)\n" in tllm("show", "--repo", copy)[1]
    code, out, _ = tllm("set", "--repo", copy, "max_beam_width=2")
    rows = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines() if "max_" in line]
    assert (code, rows) == (0, [["max_beam_width", "tensorrt_llm", "not set; default: 1", "2"]])
    assert (
        "max_beam_width = 2  (edited in the repository)\n"
        "    Maximum beam width of a request. Since TensorRT-LLM 0.6.\n"
    ) in tllm("show", "--repo", copy)[1]


def test_valid_model(tllm: Tllm, home: Home) -> None:
    path = add_model(home, "a").path
    assert tllm("validate", "a") == (0, "", f"{path}: 0 errors, 0 warnings in 6 models.\n")
    assert tllm("validate", "--json") == (0, "[]\n", "")


def test_broken_model(tllm: Tllm, home: Home) -> None:
    path = add_model(home, "a").path
    config = path / "a" / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "a"', 'name: "b"', 1))
    assert tllm("validate", "a") == (
        3,
        "error: a/config.pbtxt:2\n"
        "    the model is named b, but its folder is named a\n"
        "    Next: use the same name for the model and its folder\n",
        f"{path}: 1 error, 0 warnings in 6 models.\n",
    )
    code, out, err = tllm("validate", "a", "--json")
    assert (code, err, json.loads(out)) == (
        3,
        "",
        [
            {
                "severity": "error",
                "path": str(config),
                "line": 2,
                "what": "the model is named b, but its folder is named a",
                "next_step": "use the same name for the model and its folder",
            }
        ],
    )


def test_warning_is_no_failure(tllm: Tllm, home: Home) -> None:
    config = add_model(home, "a").path / "tensorrt_llm" / "config.pbtxt"
    config.write_text(config.read_text() + 'parameters { key: "num_thread" value { } }\n')
    code, out, _ = tllm("validate", "a")
    assert (code, out.splitlines()[1:]) == (
        0,
        [
            "    num_thread is not a known parameter",
            "    Next: use num_threads instead",
        ],
    )
