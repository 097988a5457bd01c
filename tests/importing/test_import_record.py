"""Records of how long the stages of an import took."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtllm_serve_cli.importing.import_record import (
    RECORD_FILE,
    ImportRecord,
    find_import,
    record_import,
)


def test_record_is_read_back(tmp_path: Path) -> None:
    record = ImportRecord(1.5, {"checkpoint": 12.06, "engine": 28.9})
    record_import(tmp_path, record)
    assert find_import(tmp_path) == record


@pytest.mark.parametrize("text", ["", "[]", '{"ended_at": 1}', '{"ended_at": 1, "stages_s": [2]}'])
def test_invalid_record_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORD_FILE).write_text(text)
    assert find_import(tmp_path) is None


def test_repository_of_an_earlier_version_has_no_record(tmp_path: Path) -> None:
    assert find_import(tmp_path) is None
