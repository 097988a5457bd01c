"""The combination of several repositories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.samples.repositories import UPSTREAM, add_model, copy_upstream
from trtllm_serve_cli.errors import BadInput, RepositoryError
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository.model.model_repository import OpenRepository, open_repository
from trtllm_serve_cli.repository.pbtxt import parse_config
from trtllm_serve_cli.repository.planning.combined import (
    PlacedModel,
    plan_combination,
    write_combination,
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path, tmp_path / "engines")


def imported(home: Home, *names: str) -> list[OpenRepository]:
    return [open_repository(add_model(home, name).path) for name in names]


def expected_of(home: Home, owner: str) -> set[tuple[str, str, tuple[tuple[str, str], ...]]]:
    references = (
        ("parameters.preprocessing_model_name", f"{owner}_preprocessing"),
        ("parameters.tensorrt_llm_model_name", f"{owner}_tensorrt_llm"),
    )
    around = ("preprocessing", "tensorrt_llm", "postprocessing")
    return {
        (owner, owner, references),
        *((f"{owner}_{role}", role, (("name", f"{owner}_{role}"),)) for role in around),
        *(
            (f"{owner}_{role}", role, (("name", f"{owner}_{role}"), *references))
            for role in ("ensemble", "tensorrt_llm_bls")
        ),
    }


def test_combination_prefixes_the_models_of_two_repositories(home: Home) -> None:
    placed = plan_combination(imported(home, "a", "b"))
    plans = {
        owner: {
            (each.name, each.source.name, tuple(sorted(each.changes.items())))
            for each in placed
            if each.source.parent == home.models / owner
        }
        for owner in ("a", "b")
    }
    assert plans == {"a": expected_of(home, "a"), "b": expected_of(home, "b")}
    assert len(placed) == 12


def test_steps_of_a_triton_ensemble_get_prefixed_names(tmp_path: Path) -> None:
    texts = {name: UPSTREAM[name] for name in ("preprocessing", "tensorrt_llm", "ensemble")}
    manifest = {"name": "up", "engine": {"kind": "tensorrt"}}
    assert plan_combination([OpenRepository(tmp_path, texts, manifest)])[-1] == PlacedModel(
        "up_ensemble",
        tmp_path / "ensemble",
        {
            "name": "up_ensemble",
            "ensemble_scheduling.step.preprocessing.model_name": "up_preprocessing",
            "ensemble_scheduling.step.tensorrt_llm.model_name": "up_tensorrt_llm",
        },
    )


def test_missing_model_name_becomes_the_prefixed_default(home: Home) -> None:
    (repository,) = imported(home, "a")
    text = repository.texts["ensemble"].replace("preprocessing_model_name", "forgotten")
    texts = {**repository.texts, "ensemble": text}
    placed = plan_combination([OpenRepository(repository.path, texts, repository.manifest)])
    (ensemble,) = [each for each in placed if each.name == "a_ensemble"]
    assert ensemble.changes["parameters.preprocessing_model_name"] == "a_preprocessing"


def test_reference_to_a_model_elsewhere_stays(home: Home) -> None:
    (repository,) = imported(home, "a")
    text = repository.texts["a"].replace('string_value: "tensorrt_llm"', 'string_value: "other"')
    texts = {**repository.texts, "a": text}
    placed = plan_combination([OpenRepository(repository.path, texts, repository.manifest)])
    (own,) = [each for each in placed if each.name == "a"]
    assert own.changes == {"parameters.preprocessing_model_name": "a_preprocessing"}


def test_rejects_two_models_of_the_same_name(home: Home, tmp_path: Path) -> None:
    (first,), (second,) = imported(home, "a"), imported(Home(tmp_path / "x", home.engines), "a")
    with pytest.raises(BadInput) as raised:
        plan_combination([first, second])
    assert str(raised.value) == (
        "One server cannot serve two models named a.\n"
        f"Why: {first.path} and {second.path} contain models with this name\n"
        "Next: import one of the models under another name with `tllm import -m NAME -s SOURCE`"
    )


def test_rejects_a_name_that_equals_a_prefixed_name(home: Home) -> None:
    with pytest.raises(BadInput) as raised:
        plan_combination(imported(home, "a", "a_ensemble"))
    assert raised.value.what == "a and a_ensemble cannot be served together."
    assert raised.value.why == "the combined repository would contain two models named a_ensemble"


def test_error_names_an_unreadable_file(home: Home) -> None:
    (repository,) = imported(home, "a")
    texts = {**repository.texts, "ensemble": "name: {"}
    with pytest.raises(RepositoryError, match=r"ensemble/config\.pbtxt, line 1"):
        plan_combination([OpenRepository(repository.path, texts, repository.manifest)])


def test_written_models_have_new_configs_and_link_to_the_rest(home: Home, tmp_path: Path) -> None:
    write_combination(plan_combination(imported(home, "a", "b")), tmp_path / "served")
    folder = tmp_path / "served" / "b_ensemble"
    config = parse_config((folder / "config.pbtxt").read_text())
    references = {key: value.string_value for key, value in config.parameters.items()}
    assert (config.name, references["tensorrt_llm_model_name"]) == ("b_ensemble", "b_tensorrt_llm")
    assert (folder / "1").readlink() == home.models / "b" / "ensemble" / "1"
    assert len(list((tmp_path / "served").iterdir())) == 12


def test_write_combination_does_not_change_its_sources(home: Home, tmp_path: Path) -> None:
    repositories = imported(home, "a", "b")
    write_combination(plan_combination(repositories), tmp_path / "served")
    again = [open_repository(each.path) for each in repositories]
    assert again == repositories


def test_file_that_became_invalid_is_named(home: Home, tmp_path: Path) -> None:
    placed = plan_combination(imported(home, "a", "b"))
    (home.models / "b" / "ensemble" / "config.pbtxt").write_text("name: {")
    with pytest.raises(RepositoryError, match=r"b/ensemble/config\.pbtxt is not valid"):
        write_combination(placed, tmp_path / "served")
    assert not (tmp_path / "served").exists()


def test_combined_upstream_copy_keeps_its_comments(tmp_path: Path) -> None:
    copied = copy_upstream(tmp_path / "up")
    (copied / "tllm.json").write_text(json.dumps({"name": "up", "engine": {"kind": "tensorrt"}}))
    write_combination(plan_combination([open_repository(copied)]), tmp_path / "served")
    text = (tmp_path / "served" / "up_preprocessing" / "config.pbtxt").read_text()
    before = UPSTREAM["preprocessing"]
    assert text == before.replace('name: "preprocessing"', 'name: "up_preprocessing"')
