"""Engine folders of the store."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.samples.builds import ENGINE, build_plan
from tests.samples.tensorrt_engines import write_engine as write_tensorrt_engine
from trtllm_serve_cli.build.engine import read_build_record, write_engine
from trtllm_serve_cli.build.partial_build import resume_or_start
from trtllm_serve_cli.build.run import build_engine
from trtllm_serve_cli.build.store import StoredEngine, list_engines, lock_of, place_engine
from trtllm_serve_cli.engine_kinds.dispatch import load_engine
from trtllm_serve_cli.errors import BuildFailed
from trtllm_serve_cli.paths import Home


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "engines"


def placed_folder(store: Path, **changes: str) -> str:
    return place_engine(build_plan(store, **changes), store).engine_dir.name


def test_tensorrt_engine_without_a_rank_is_listed_as_broken(tmp_path: Path) -> None:
    folder = write_tensorrt_engine(tmp_path / "mine-f1", num_ranks=1)
    facts = {"kind": "tensorrt", "path": folder}
    write_engine(dataclasses.replace(ENGINE, **facts), folder)
    assert [each.engine for each in list_engines(tmp_path, read=load_engine)] == [None]
    assert place_engine(build_plan(tmp_path), tmp_path).engine_dir == folder


def test_engine_folder_has_name_and_fingerprint(store: Path) -> None:
    assert placed_folder(store) == "mine-f1"
    assert not store.exists()


def test_existing_engine_is_found_under_any_model_name(store: Path) -> None:
    build_engine(place_engine(build_plan(store), store), force=False, notify=print)
    assert placed_folder(store, model_name="other") == "mine-f1"
    assert placed_folder(store, model_name="other", fingerprint="f2") == "other-f2"


def test_partial_build_is_resumed_under_any_model_name(store: Path) -> None:
    resume_or_start(place_engine(build_plan(store), store), rebuild=True)
    assert placed_folder(store, model_name="other") == "mine-f1"


def test_folder_of_another_fingerprint_is_not_used(store: Path) -> None:
    (store / "a-f1").mkdir(parents=True)
    write_engine(dataclasses.replace(ENGINE, fingerprint="f0"), store / "a-f1")
    assert placed_folder(store) == "mine-f1"


def test_broken_engine_is_rebuilt_in_its_folder(store: Path) -> None:
    (store / "a-f1").mkdir(parents=True)
    (store / "a-f1" / "engine.json").write_text("{")
    plan = place_engine(build_plan(store), store)
    with pytest.raises(BuildFailed, match="build the engine again with --force"):
        build_engine(plan, force=False, notify=print)
    assert build_engine(plan, force=True, notify=print).path == store / "a-f1"


def test_engines_are_listed_with_their_build_records(store: Path) -> None:
    plan = place_engine(build_plan(store), store)
    engine = build_engine(plan, force=False, notify=print)
    (store / "broken").mkdir()
    (store / "broken" / "engine.json").write_text("{")
    (store / ".hidden").mkdir()
    (store / ".hidden" / "engine.json").write_text("{")
    num_bytes = sum(path.stat().st_size for path in engine.path.iterdir())
    assert list_engines(store) == [
        StoredEngine(store / "broken", 1, None, None),
        StoredEngine(engine.path, num_bytes, engine, read_build_record(engine.path)),
    ]


def test_missing_store_lists_nothing(store: Path) -> None:
    assert list_engines(store) == []


def test_homes_that_share_a_store_share_its_locks(tmp_path: Path) -> None:
    homes = [Home(tmp_path / name, tmp_path / "engines") for name in "ab"]
    stored = {lock_of(home, home.engines / "x", "f1") for home in homes}
    users = {lock_of(home, tmp_path / "my-engine", mark) for home in homes for mark in "12"}
    assert (len(stored), len(users)) == (1, 2)
