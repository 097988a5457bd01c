"""Changes of several files, and the state of the files after an interrupt or an error."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from trtllm_serve_cli.errors import RepositoryError
from trtllm_serve_cli.repository.model.file_changes import complete_changes, replace_files

NEW = {Path("a/config.pbtxt"): "new a", Path("b/config.pbtxt"): "new b"}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for path in NEW:
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text("old")
    return tmp_path


def texts_in(repository: Path) -> dict[str, str]:
    paths = [path for path in repository.rglob("*") if path.is_file()]
    return {str(path.relative_to(repository)): path.read_text() for path in paths}


def test_all_files_are_replaced(repository: Path) -> None:
    replace_files(repository, NEW)
    assert texts_in(repository) == {str(path): text for path, text in NEW.items()}


def test_replaced_file_keeps_its_permissions(repository: Path) -> None:
    path = repository / "a/config.pbtxt"
    path.chmod(0o640)
    replace_files(repository, NEW)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_missing_file_changes_no_other_file(repository: Path) -> None:
    (repository / "b/config.pbtxt").unlink()
    with pytest.raises(FileNotFoundError):
        replace_files(repository, NEW)
    assert texts_in(repository) == {"a/config.pbtxt": "old"}


def test_error_restores_the_files_that_were_replaced(repository: Path) -> None:
    # The temporary file of the second file cannot be created.
    (repository / "b/.config.pbtxt.aside").mkdir()
    with pytest.raises(OSError):
        replace_files(repository, NEW)
    assert texts_in(repository) == {"a/config.pbtxt": "old", "b/config.pbtxt": "old"}


def test_committed_change_is_completed(repository: Path) -> None:
    committed = {str(path): text for path, text in NEW.items()}
    (repository / ".tllm-changes").write_text(json.dumps(committed))
    complete_changes(repository)
    assert texts_in(repository) == committed


def test_damaged_change_is_an_error(repository: Path) -> None:
    committed = repository / ".tllm-changes"
    committed.write_text('{"a": "n')
    with pytest.raises(RepositoryError) as raised:
        complete_changes(repository)
    assert f"{committed} is not valid JSON" in str(raised.value.why)
