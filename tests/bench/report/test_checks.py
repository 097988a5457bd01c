from __future__ import annotations

import json
from pathlib import Path

import pytest

from trtllm_serve_cli.bench.report.checks import Reference, check, read_reference
from trtllm_serve_cli.errors import BadInput, CheckFailed


def _reference(tmp_path: Path, content: object) -> Path:
    file = tmp_path / "perf.json"
    file.write_text(json.dumps(content))
    return file


@pytest.mark.parametrize("measured", [844.9, 1000.0, 1155.1])
def test_tolerances_match_upstream(measured: float) -> None:
    reference = Reference(Path("perf.json"), "a", {"Total latency (ms)": 1000.0}, 100.0, 0.05)
    if abs(measured - 1000) <= 150:
        check({"Total latency (ms)": measured}, reference)
    else:
        with pytest.raises(CheckFailed, match="does not match the reference 'a'"):
            check({"Total latency (ms)": measured}, reference)


def test_metric_that_was_not_measured_fails() -> None:
    with pytest.raises(CheckFailed) as failed:
        check({}, Reference(Path("perf.json"), "a", {"Speed": 1.0}))
    assert "'Speed' was not measured" in failed.value.why


def test_read_reference(tmp_path: Path) -> None:
    file = _reference(tmp_path, {"a": {"Requests/Sec": 3}})
    assert read_reference(file, "a", 1.0, 0.1) == Reference(
        file, "a", {"Requests/Sec": 3.0}, 1, 0.1
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"b": {}}, "does not contain the key 'a' (available keys: b)"),
        ({"a": {}}, "does not contain values for the key 'a'"),
        ({"a": {"x": "fast"}}, "must map each key to an object with a number for each metric"),
        ([1], "must map each key to an object"),
    ],
    ids=["other key", "empty", "not a number", "not an object"],
)
def test_invalid_reference_file_is_rejected(tmp_path: Path, content: object, why: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_reference(_reference(tmp_path, content), "a", 1.0, 0.1)
    assert why in refused.value.why


def test_text_file_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "perf.txt"
    file.write_text("fast")
    with pytest.raises(BadInput) as refused:
        read_reference(file, "a", 1.0, 0.1)
    assert refused.value.why.startswith("the file is not valid JSON: ")


def test_missing_reference_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be used"):
        read_reference(tmp_path / "none.json", "a", 1.0, 0.1)
