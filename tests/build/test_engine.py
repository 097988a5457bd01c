"""Writing and reading engine.json."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.samples.builds import ENGINE
from trtllm_serve_cli.build.engine import (
    BuildRecord,
    Engine,
    add_build_record,
    find_engine,
    read_engine,
    write_engine,
)
from trtllm_serve_cli.errors import BuildFailed

WORDS = [field.name for field in dataclasses.fields(Engine) if field.type == "str"]


@given(st.builds(Engine, **{"path": st.just(Path("/gone")), **dict.fromkeys(WORDS, st.text())}))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_written_engine_is_read_back(tmp_path: Path, engine: Engine) -> None:
    write_engine(engine, tmp_path)
    assert read_engine(tmp_path) == dataclasses.replace(engine, path=tmp_path)


def test_reads_an_engine_of_an_earlier_version(tmp_path: Path) -> None:
    write_engine(ENGINE, tmp_path)
    facts = json.loads((tmp_path / "engine.json").read_text())
    del facts["tool_chat_template"]
    (tmp_path / "engine.json").write_text(json.dumps(facts))
    assert read_engine(tmp_path) == dataclasses.replace(ENGINE, path=tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": 1}', "null"])
def test_broken_engine_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "engine.json").write_text(text)
    with pytest.raises(
        BuildFailed,
        match=r"not contain an engine.*\n.*engine.json (is not valid JSON|does not).*\n.*--force",
    ):
        read_engine(tmp_path)


def test_build_record_is_not_added_to_a_truncated_file(tmp_path: Path) -> None:
    (tmp_path / "engine.json").write_text('{"kind": ')
    with pytest.raises(BuildFailed, match="does not contain an engine"):
        add_build_record(tmp_path, BuildRecord("m", 0, "/models/m", None, {}, ()))


def test_folder_without_an_engine(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match=r"engine\.json is missing"):
        read_engine(tmp_path)
    assert find_engine(tmp_path, "f1") is None


def test_engine_is_found_by_its_fingerprint(tmp_path: Path) -> None:
    write_engine(ENGINE, tmp_path)
    assert find_engine(tmp_path, "f1") == dataclasses.replace(ENGINE, path=tmp_path)
    assert find_engine(tmp_path, "f2") is None


def test_unknown_fields_of_a_newer_version_are_ignored(tmp_path: Path) -> None:
    write_engine(ENGINE, tmp_path)
    facts = json.loads((tmp_path / "engine.json").read_text())
    (tmp_path / "engine.json").write_text(json.dumps(facts | {"new": 1}))
    assert read_engine(tmp_path).model_name == "mine"
