"""The adapter of a request, and the transfer of its weights to the worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trtllm_serve_cli.runtime.engine import InvalidRequest
from trtllm_serve_cli.runtime.lora.adapter_request import (
    discard,
    parse_lora,
    read_lora_name,
    read_sent,
)

IDS = np.array([3, 2**63], dtype=np.uint64)
WEIGHTS = np.arange(12, dtype=np.float16).reshape(2, 1, 6)
CONFIG = np.array([[[1, 0, 1]], [[2, 0, 1]]], dtype=np.int32)


def parse(folder: Path, name: str | None = None, **tensors: Any) -> list[dict[str, Any]]:
    return parse_lora(tensors.get, name, 2, folder)


def test_a_plain_request_has_no_adapter(tmp_path: Path) -> None:
    assert parse(tmp_path) == [{}, {}]


def test_each_row_has_its_own_task_id(tmp_path: Path) -> None:
    assert parse(tmp_path, lora_task_id=IDS) == [{"lora_task_id": 3}, {"lora_task_id": 2**63}]


def test_a_name_applies_to_all_rows(tmp_path: Path) -> None:
    assert parse(tmp_path, "poet") == [{"lora_name": "poet"}] * 2


def test_weights_are_sent_in_private_files_that_read_sent_deletes(tmp_path: Path) -> None:
    rows = parse(tmp_path, lora_task_id=IDS, lora_weights=WEIGHTS, lora_config=CONFIG)
    files = [Path(row["lora_file"]) for row in rows]
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]
    read = [[each.tolist() for each in read_sent(file)] for file in files]
    assert read == [[WEIGHTS[row].tolist(), CONFIG[row].tolist()] for row in range(2)]
    assert list(tmp_path.iterdir()) == []


def test_discard_deletes_unread_files(tmp_path: Path) -> None:
    rows = parse(tmp_path, lora_task_id=IDS, lora_weights=WEIGHTS, lora_config=CONFIG)
    read_sent(Path(rows[0]["lora_file"]))
    discard([*rows, {}])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "tensors", "why"),
    [
        ("poet", {"lora_task_id": IDS}, "send either the parameter or the tensors"),
        (
            None,
            {"lora_weights": WEIGHTS, "lora_config": CONFIG},
            "lora_weights and lora_config require lora_task_id",
        ),
        (
            None,
            {"lora_task_id": IDS[:1]},
            r"lora_task_id has shape \[1\], but the request has \d rows; send one id per row",
        ),
        (None, {"lora_task_id": IDS, "lora_weights": WEIGHTS}, "lora_config is missing"),
        (None, {"lora_task_id": IDS, "lora_config": CONFIG}, "lora_weights is missing"),
        (
            None,
            {"lora_task_id": IDS, "lora_weights": WEIGHTS[0], "lora_config": CONFIG},
            r"lora_weights has shape \[1, 6\]; send a tensor of shape \[2, modules, values\]",
        ),
        (
            None,
            {"lora_task_id": IDS, "lora_weights": WEIGHTS, "lora_config": CONFIG[:, :, :2]},
            r"lora_config has shape \[1, 2\]",
        ),
    ],
)
def test_rejects_invalid_tensors_and_leaves_no_file(
    tmp_path: Path, name: str | None, tensors: Any, why: str
) -> None:
    with pytest.raises(InvalidRequest, match=why):
        parse(tmp_path, name, **tensors)
    assert list(tmp_path.iterdir()) == []


def test_reports_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="No such file"):
        parse(tmp_path / "gone", lora_task_id=IDS, lora_weights=WEIGHTS, lora_config=CONFIG)


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ("{}", None),
        ('{"lora_name": "poet"}', "poet"),
        ('{"lora_name": null}', None),
        ('{"other": "lora_name"}', None),
    ],
)
def test_read_lora_name(parameters: str, name: str | None) -> None:
    assert read_lora_name(parameters) == name


@pytest.mark.parametrize("value", ["5", "true", '""'])
def test_rejects_a_name_that_is_not_text(value: str) -> None:
    with pytest.raises(InvalidRequest, match="send an adapter name"):
        read_lora_name(f'{{"lora_name": {value}}}')
