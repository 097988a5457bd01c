"""The engines in use, and the folders that the removal of a model deletes."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from tests.samples.builds import ENGINE, build_plan
from tests.samples.repositories import add_model
from trtllm_serve_cli.build.engine import write_engine
from trtllm_serve_cli.build.partial_build import path_of_partial_build, resume_or_start
from trtllm_serve_cli.build.store import lock_of
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.paths import Home, hold_lock
from trtllm_serve_cli.repository.model.render import write_repository
from trtllm_serve_cli.repository.model.store import ImportedModel, list_models
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository
from trtllm_serve_cli.repository.settings.engine_references import (
    find_users,
    plan_removal,
    record_references,
    remove,
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path, tmp_path / "engines")


def add_elsewhere(home: Home, repository: Path, engine: Path, **parameters: str) -> Path:
    """Write a repository outside of the home, as `tllm import --repo DIR` does."""
    served = dataclasses.replace(ENGINE, path=engine)
    options = ServingOptions(parameters=parameters)
    write_repository(plan_repository("mine", served, options), repository)
    record_references(home, repository)
    return repository


def removed(home: Home, *models: ImportedModel, unused: bool = False) -> list[str]:
    """Remove the models, and return the names of the deleted folders."""
    removal = plan_removal(home, [model.path for model in models], unused=unused)
    assert remove(home, removal) == []
    assert not any(path.exists() for path in removal.sizes())
    return [path.name for path in removal.sizes()]


def test_removing_a_model_removes_its_engine(home: Home) -> None:
    model, other = add_model(home, "mine"), add_model(home, "other")
    assert removed(home, model) == ["mine", "mine"]
    assert (list_models(home), other.engine_path.exists()) == ([other], True)


def test_ignores_a_model_that_another_process_has_removed(home: Home) -> None:
    model = add_model(home, "mine")
    removal = plan_removal(home, [model.path], unused=False)
    remove(home, removal)
    assert remove(home, removal) == []


def test_keeps_an_engine_outside_the_store(home: Home, tmp_path: Path) -> None:
    model = add_model(home, "mine", tmp_path / "my-engine")
    removed(home, model, unused=True)
    assert (list_models(home), model.engine_path.exists()) == ([], True)


def test_never_removes_the_store(home: Home) -> None:
    model = add_model(home, "mine", home.engines)
    assert plan_removal(home, [model.path], unused=True).engines == ()


def test_keeps_an_engine_that_another_model_uses(home: Home) -> None:
    model, other = add_model(home, "mine"), add_model(home, "other", home.engines / "mine")
    assert find_users(home) == {model.engine_path: [model.path, other.path]}
    assert removed(home, model) == ["mine"]
    assert (list_models(home), other.engine_path.exists()) == ([other], True)
    assert removed(home, other) == ["other", "mine"]


def test_removes_a_model_whose_engine_is_missing(home: Home) -> None:
    model = add_model(home, "mine")
    shutil.rmtree(model.engine_path)
    removed(home, model)
    assert list_models(home) == []


def test_keeps_an_engine_that_a_repository_elsewhere_uses(home: Home, tmp_path: Path) -> None:
    model = add_model(home, "mine")
    repository = add_elsewhere(home, tmp_path / "elsewhere", model.engine_path)
    assert find_users(home) == {model.engine_path: [repository, model.path]}
    removed(home, model, unused=True)
    assert model.engine_path.exists()
    shutil.rmtree(repository)
    assert removed(home, unused=True) == ["mine"]
    assert list((home.engines / ".used-by").iterdir()) == []


def test_keeps_an_engine_that_another_home_uses(home: Home, tmp_path: Path) -> None:
    other_home = Home(tmp_path / "theirs", home.engines)
    model, other = add_model(home, "mine"), add_model(other_home, "other", home.engines / "mine")
    record_references(other_home, other.path)
    assert removed(home, model, unused=True) == ["mine"]
    assert model.engine_path.exists()


def test_keeps_an_engine_that_another_store_references(home: Home, tmp_path: Path) -> None:
    model = add_model(home, "mine")
    (home.engines / ".locks").mkdir()
    other_home = Home(tmp_path / "theirs", tmp_path / "theirs" / "engines")
    record_references(other_home, add_model(other_home, "other", model.engine_path).path)
    assert removed(home, model) == ["mine"]
    assert model.engine_path.exists()


def test_draft_engine_is_in_use(home: Home, tmp_path: Path) -> None:
    draft, model = add_model(home, "draft"), add_model(home, "mine")
    repository = tmp_path / "elsewhere"
    add_elsewhere(home, repository, model.engine_path, draft_model_dir=str(draft.engine_path))
    assert find_users(home, without=[draft.path, model.path]) == {
        draft.engine_path: [repository],
        model.engine_path: [repository],
    }


def test_engine_from_tllm_set_is_in_use(home: Home) -> None:
    model, other = add_model(home, "mine"), add_model(home, "other")
    manifest = json.loads((model.path / "tllm.json").read_text())
    manifest["set"] = {"engine_dir": str(other.engine_path), "max_queue_size": "3"}
    (model.path / "tllm.json").write_text(json.dumps(manifest))
    assert removed(home, other) == ["other"]


def test_resolves_links_to_the_store(home: Home, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(home.engines.parent)
    model = add_model(home, "mine", link / "engines" / "mine")
    assert list(find_users(home)) == [home.engines / "mine"]
    assert removed(home, model) == ["mine", "mine"]


def test_removes_unused_engines_if_requested(home: Home) -> None:
    model = add_model(home, "mine")
    for name in ("old", "broken"):
        (home.engines / name).mkdir()
    write_engine(ENGINE, home.engines / "old")
    (home.engines / "broken" / "engine.json").write_text("{")
    assert removed(home, add_model(home, "other")) == ["other", "other"]
    assert removed(home, unused=True) == ["broken", "old"]
    assert model.engine_path.exists()


def test_removing_a_model_removes_its_partial_builds(home: Home) -> None:
    model = add_model(home, "mine")
    for name, engine in (("mine", "mine-f2"), ("other", "other-f3")):
        resume_or_start(
            build_plan(home.engines / engine, model_name=name, fingerprint=engine[-2:]),
            rebuild=True,
        )
    assert removed(home, model) == ["mine", "mine", ".mine-f2.partial"]
    assert removed(home, unused=True) == [".other-f3.partial"]


def test_keeps_locked_engines(home: Home) -> None:
    model = add_model(home, "mine")
    plan = build_plan(home.engines / "mine-f2", fingerprint="f2")
    resume_or_start(plan, rebuild=True)
    removal = plan_removal(home, [model.path], unused=True)
    partial = path_of_partial_build(plan.engine_dir)
    locks = [lock_of(home, home.engines / "x", mark) for mark in ("f1", "f2")]
    with hold_lock(locks[0], lambda: None), hold_lock(locks[1], lambda: None):
        assert remove(home, removal) == [model.engine_path, partial]
    assert model.engine_path.exists() and partial.exists()


def test_keeps_an_engine_that_was_imported_meanwhile(home: Home) -> None:
    model = add_model(home, "mine")
    removal = plan_removal(home, [model.path], unused=False)
    add_model(home, "other", model.engine_path)
    assert remove(home, removal) == [model.engine_path]


@pytest.mark.parametrize("text", ["{", "[]", '{"engine": {}}', '{"engine": {"path": 1}}', "null"])
def test_broken_manifest_keeps_its_engine_in_use(home: Home, text: str) -> None:
    model = add_model(home, "mine")
    (model.path / "tllm.json").write_text(text)
    assert find_users(home) == {model.engine_path: [model.path]}
    assert removed(home, unused=True) == []
    assert removed(home, model) == ["mine", "mine"]


def test_broken_manifest_without_configurations_references_no_engine(home: Home) -> None:
    model = add_model(home, "mine")
    (model.path / "tllm.json").write_text("{")
    for config in model.path.glob("*/config.pbtxt"):
        config.unlink()
        config.mkdir()
    assert find_users(home) == {}
