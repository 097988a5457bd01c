from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.samples.repositories import add_model, copy_upstream
from trtllm_serve_cli.errors import RepositoryError
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository.model.model_repository import open_repository
from trtllm_serve_cli.repository.model.runtime_copy import (
    has_other_runtime,
    plan_runtime_update,
    update_runtime,
)
from trtllm_serve_cli.repository.model.store import MANIFEST

MODULES = ("preprocessing", "tensorrt_llm", "postprocessing", "text")
OLD = {f"models/{name}.py": "old" for name in MODULES}
NEW = {"engine.py": "new", **{f"models/{name}.py": "new" for name in MODULES}}


def install(monkeypatch: pytest.MonkeyPatch, runtime: dict[str, str]) -> None:
    package = "trtllm_serve_cli.repository.model.runtime_copy._read_package"
    monkeypatch.setattr(package, lambda: dict(runtime))


@pytest.fixture
def repository(home: Home, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository that another version rendered."""
    install(monkeypatch, OLD)
    path = add_model(home, "m").path
    install(monkeypatch, NEW)
    return path


def read_files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_update_replaces_only_the_runtime(repository: Path) -> None:
    config = repository / "tensorrt_llm" / "config.pbtxt"
    config.write_text(f"# mine\n{config.read_text()}")
    (repository / "notes.txt").write_text("mine")
    before = read_files(repository)
    assert has_other_runtime(open_repository(repository))
    update_runtime(plan_runtime_update(open_repository(repository)))
    assert not has_other_runtime(open_repository(repository))
    after = read_files(repository)
    old, new = (
        {path: files.pop(path) for path in [*files] if "/tllm_runtime/" in path}
        for files in (before, after)
    )
    assert old.keys() < new.keys()
    assert {path.partition("/tllm_runtime/")[2]: text for path, text in new.items()} == NEW
    manifest, updated = (json.loads(files.pop(MANIFEST)) for files in (before, after))
    assert before == after
    assert {**manifest, "runtime": updated["runtime"]} == updated
    assert plan_runtime_update(open_repository(repository)).folders == ()


def test_repository_without_a_record_has_another_runtime(repository: Path) -> None:
    update_runtime(plan_runtime_update(open_repository(repository)))
    manifest = json.loads((repository / MANIFEST).read_text())
    del manifest["runtime"]
    (repository / MANIFEST).write_text(json.dumps(manifest))
    assert has_other_runtime(open_repository(repository))


def test_edited_and_missing_copies_are_replaced(repository: Path) -> None:
    update_runtime(plan_runtime_update(open_repository(repository)))
    edited, missing = (
        repository / model / "1" / "tllm_runtime" for model in ("preprocessing", "postprocessing")
    )
    (edited / "engine.py").write_text("mine")
    shutil.rmtree(missing)
    assert not has_other_runtime(open_repository(repository))
    assert set(plan_runtime_update(open_repository(repository)).folders) == {edited, missing}


def test_damaged_and_linked_copies_are_replaced(repository: Path) -> None:
    update_runtime(plan_runtime_update(open_repository(repository)))
    damaged, linked = (
        repository / model / "1" / "tllm_runtime" for model in ("preprocessing", "postprocessing")
    )
    (damaged / "engine.py").write_bytes(b"\xff")
    shutil.rmtree(linked)
    linked.symlink_to(damaged)
    update_runtime(plan_runtime_update(open_repository(repository)))
    assert [read_files(folder) for folder in (damaged, linked)] == [NEW, NEW]
    assert not linked.is_symlink()


def test_failed_update_changes_nothing(repository: Path) -> None:
    planned, before = plan_runtime_update(open_repository(repository)), read_files(repository)
    broken = {**NEW, "engine.py/text.py": ""}
    with pytest.raises(OSError, match="engine"):
        update_runtime(dataclasses.replace(planned, sources=broken))
    assert plan_runtime_update(open_repository(repository)) == planned
    assert (read_files(repository), [*repository.parent.iterdir()]) == (before, [repository])


def test_repository_with_a_mount_point_is_refused(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(source))

    planned, before = plan_runtime_update(open_repository(repository)), read_files(repository)
    monkeypatch.setattr(os, "link", link)
    with pytest.raises(RepositoryError, match="was not updated") as caught:
        update_runtime(planned)
    assert "model.py is in another file system than" in caught.value.why
    assert (read_files(repository), [*repository.parent.iterdir()]) == (before, [repository])


def test_runtime_without_a_used_module_is_refused(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, {name: text for name, text in NEW.items() if "preprocessing" not in name})
    with pytest.raises(RepositoryError, match="cannot be updated") as caught:
        plan_runtime_update(open_repository(repository))
    assert caught.value.why.endswith("/m/preprocessing/1/model.py")
    assert "tllm import -f m.yaml" in caught.value.next_step


def test_incomplete_model_file_is_refused(repository: Path) -> None:
    code = repository / "preprocessing" / "1" / "model.py"
    code.write_text("")
    with pytest.raises(RepositoryError, match="cannot be updated") as caught:
        plan_runtime_update(open_repository(repository))
    assert caught.value.why.endswith("has no module for " + str(code))


def test_copy_of_upstream_has_no_runtime(tmp_path: Path) -> None:
    repository = open_repository(copy_upstream(tmp_path / "upstream"))
    assert not has_other_runtime(repository)
    with pytest.raises(RepositoryError, match="does not contain a copy of tllm's runtime"):
        plan_runtime_update(repository)
