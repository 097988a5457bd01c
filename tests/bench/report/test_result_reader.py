from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.samples.bench_results import make_result, store
from trtllm_serve_cli.bench.model.arrivals import AtConcurrency, AtRate
from trtllm_serve_cli.bench.model.records import RequestError
from trtllm_serve_cli.bench.report.result_json import to_json
from trtllm_serve_cli.bench.report.result_reader import (
    StoredResult,
    describe_load,
    find_results,
    read_result,
    read_results,
)
from trtllm_serve_cli.errors import BadInput


def test_written_result_is_read_back(keep: Callable[..., StoredResult]) -> None:
    made = make_result(runs=2)
    result = keep(made)
    assert result.records == made.records
    assert result.summary == json.loads(json.dumps(to_json(made)))
    assert [len(run) for run in result.runs] == [120, 120]
    assert result.samples[0]["engines"][0]["kv_blocks_max"] == 100


def test_error_message_with_a_unicode_line_separator_is_read_back(
    keep: Callable[..., StoredResult],
) -> None:
    made = make_result(num_requests=3, fails_every=1)
    error = RequestError("server", "first\u2028second\x85third")
    run = made.runs[0]
    run = replace(run, records=tuple(replace(each, error=error) for each in run.records))
    result = keep(replace(made, runs=(run,)))
    assert {record.error for record in result.records} == {error}


def test_results_in_a_folder_are_sorted_by_number(tmp_path: Path) -> None:
    for rate in (16, 8, 2.5):
        store(make_result(AtRate(rate), num_requests=2), tmp_path / f"rate-{rate}")
    (tmp_path / "notes").mkdir()
    names = [folder.name for folder in find_results(tmp_path)]
    assert names == ["rate-2.5", "rate-8", "rate-16"]
    assert [result.short_load for result in read_results([tmp_path])] == ["2.5/s", "8/s", "16/s"]


@pytest.mark.parametrize(
    ("load", "words"),
    [
        ({"kind": "rate", "request_rate_per_s": 2.5, "concurrency": None}, "2.5 requests/s"),
        (
            {"kind": "rate", "request_rate_per_s": 2, "concurrency": 4},
            "2 requests/s, at most 4 in flight",
        ),
        ({"kind": "concurrency", "concurrency": 4}, "4 in flight"),
        ({"kind": "trace", "speed": 2.0, "concurrency": None}, "a trace, 2x"),
        ({"kind": "all_at_once"}, "in one burst"),
    ],
    ids=["rate", "capped", "closed", "trace", "at the start"],
)
def test_load_in_words(load: dict[str, Any], words: str) -> None:
    assert describe_load(load) == words


def test_folder_without_a_result_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not a benchmark result") as refused:
        find_results(tmp_path)
    assert refused.value.why == "neither the folder nor its subfolders contain summary.json"
    assert "--output DIR`" in refused.value.next_step
    with pytest.raises(BadInput) as refused:
        find_results(tmp_path / "missing")
    assert refused.value.why == "the folder does not exist"
    assert f"--output {tmp_path / 'missing'}`" in refused.value.next_step
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput) as refused:
        find_results(tmp_path / "file")
    assert refused.value.why == "the path is not a folder"


def _damage(folder: Path, file: str, old: str, new: str) -> None:
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("file", "old", "new", "what"),
    [
        (
            "summary.json",
            '"schema_version": 2',
            '"schema_version": 99',
            "has an unsupported version",
        ),
        ("summary.json", '"schema_version"', '"version"', "is not the summary of a benchmark"),
        ("summary.json", '"client"', '"klient"', "is incomplete"),
        ("summary.json", "{", "", "cannot be read"),
        ("requests.jsonl", '"due_s"', '"do_s"', "Line 1 .*requests.jsonl is not a request record"),
        ("requests.jsonl", "{", "", "Line 1 of .*requests.jsonl is not valid JSON"),
        ("server_samples.jsonl", "{", "[{", "is not valid JSON"),
    ],
)
def test_damaged_result_is_rejected_with_file_and_line(
    tmp_path: Path, file: str, old: str, new: str, what: str
) -> None:
    folder = store(make_result(AtConcurrency(2), num_requests=3), tmp_path / "result")
    _damage(folder, file, old, new)
    with pytest.raises(BadInput, match=what):
        read_result(folder)
