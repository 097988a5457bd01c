"""The list of imported models, and the lookup of a model by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.samples.repositories import add_model
from trtllm_serve_cli.errors import RepositoryError, UnknownModel
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository.model.store import (
    ImportedModel,
    find_model,
    list_models,
    load_model,
    read_manifest,
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path, tmp_path / "engines")


def test_reads_the_written_manifest(home: Home) -> None:
    model = add_model(home, "mine")
    assert model == ImportedModel(
        name="mine",
        path=home.models / "mine",
        layout="inflight",
        engine_kind="openvino",
        engine_path=home.engines / "mine",
        source="gguf:/models/mine.gguf",
        fingerprint="f1",
        created_at=model.created_at,
        models=("preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls",
                "mine"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not valid JSON: Expecting value: line 1 column 1 (char 0)"),
        ("{", "is not valid JSON: Expecting property name"),
        ("[]", "does not have the structure that tllm writes"),
        ("{}", "does not contain 'engine'"),
        ('{"engine": 1}', "does not contain 'name'"),
        ("null", "does not have the structure that tllm writes"),
    ],
)
def test_rejects_a_broken_manifest(
    home: Home, text: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TLLM_HOME", str(home.root))
    add_model(home, "mine")
    (home.models / "mine" / "tllm.json").write_text(text)
    with pytest.raises(RepositoryError) as raised:
        load_model(home, "mine")
    assert raised.value.what == f"The model repository {home.models / 'mine'} is damaged."
    assert raised.value.why.startswith(f"tllm.json in this folder {why}")
    assert raised.value.next_step == (
        "import the model again with `tllm import -m mine -s SOURCE --force`, or delete it with "
        "`tllm remove mine`"
    )


def test_broken_manifest_outside_the_home_cannot_be_removed_by_name(home: Home) -> None:
    path = add_model(home, "mine").path
    (path / "tllm.json").write_text("{")
    with pytest.raises(RepositoryError) as raised:
        read_manifest(path)
    assert raised.value.next_step == (
        f"import the model again with `tllm import -m NAME --repo {path} -s SOURCE --force`, or "
        "delete the folder"
    )


def test_lists_models_sorted_by_name(home: Home) -> None:
    models = [add_model(home, name) for name in ("b", "a")]
    (home.models / "not-ours").mkdir()
    add_model(home, ".b.aside-dead")
    assert list_models(home) == models[::-1]


def test_empty_home_has_no_models(home: Home) -> None:
    assert list_models(home) == []


def test_finds_a_model_by_name(home: Home) -> None:
    model = add_model(home, "mine")
    assert (find_model(home, "mine"), find_model(home, "other")) == (model, None)
    assert load_model(home, "mine") == load_model(home, None) == model


def test_load_fails_without_models(home: Home) -> None:
    with pytest.raises(UnknownModel) as raised:
        load_model(home, None)
    assert str(raised.value) == "No model has been imported yet.\nNext: run `tllm import -m demo`"


def test_load_requires_a_name_if_there_are_several_models(home: Home) -> None:
    add_model(home, "a"), add_model(home, "b")
    with pytest.raises(UnknownModel) as raised:
        load_model(home, None)
    what = "2 models have been imported: a, b."
    assert str(raised.value) == f"{what}\nNext: choose a model with -m NAME"


def test_unknown_model_error_suggests_similar_names(home: Home) -> None:
    add_model(home, "llama-7b")
    with pytest.raises(UnknownModel) as raised:
        load_model(home, "lama-7b")
    assert str(raised.value) == (
        "No model named 'lama-7b' has been imported.\n"
        "Why: models with similar names: llama-7b\n"
        "Next: run the command again with llama-7b, or list the imported models with `tllm list`"
    )


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "dem",
            [
                "Why: models with similar names: demo",
                "Next: run `tllm import -m demo`, or list the imported models with `tllm list`",
            ],
        ),
        (
            "demo",
            ["Next: run `tllm import -m demo`, or list the imported models with `tllm list`"],
        ),
        (
            "m",
            [
                "Next: list the imported models with `tllm list`, or the models in the catalog "
                "with `tllm list --catalog`; import other models with `tllm import -m NAME -s "
                "SOURCE`"
            ],
        ),
    ],
)
def test_unknown_model_error_suggests_only_imports_that_work(
    home: Home, name: str, lines: list[str]
) -> None:
    with pytest.raises(UnknownModel) as raised:
        load_model(home, name)
    assert str(raised.value).splitlines()[1:] == lines


@pytest.mark.parametrize("name", ["../elsewhere/mine", "", ".", "mine/"])
def test_name_is_not_a_path(home: Home, name: str) -> None:
    add_model(Home(home.root / "elsewhere", home.engines), "mine")
    with pytest.raises(UnknownModel):
        load_model(home, name)


def test_ignores_a_partially_written_model(home: Home) -> None:
    add_model(home, ".a.aside-dead")
    with pytest.raises(UnknownModel, match="No model has been imported yet"):
        load_model(home, None)


def test_reads_a_manifest_of_a_newer_version(home: Home) -> None:
    path = add_model(home, "mine").path / "tllm.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"new": 1}))
    assert load_model(home, "mine").name == "mine"
