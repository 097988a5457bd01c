"""Tests of the commands `tllm bench report` and `tllm bench compare`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.bench.running import SMALL, bench, invoke
from tests.fakes.triton.server import FakeTriton
from tests.samples.bench_results import make_result, store
from trtllm_serve_cli.bench.model.arrivals import AtConcurrency
from trtllm_serve_cli.errors import BadInput, CheckFailed


def test_report_of_one_result_or_several(server: FakeTriton, tmp_path: Path) -> None:
    url = server.endpoint.grpc
    folders = [str(tmp_path / name) for name in ("a", "b")]
    for folder in folders:
        bench("-u", url, "--stream", "--output", folder, *SMALL)
    (tmp_path / "a" / "report.html").unlink()
    assert invoke("report", folders[0]).stdout.strip() == f"{folders[0]}/report.html"
    page, trace = tmp_path / "new" / "page.html", tmp_path / "new" / "trace.json"
    assert invoke("report", *folders, "-o", str(page)).exit_code == 0
    assert "2 results" in page.read_text()
    assert invoke("report", folders[0], "--trace", str(trace)).exit_code == 0
    assert trace.exists()
    assert invoke("report", *folders).exit_code == 2
    assert invoke("report", *folders, "-o", str(page), "--trace", str(trace)).exit_code == 2


def test_report_goes_to_a_file(results: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "file").touch()
    for option in ("-o", "--trace"):
        assert invoke("report", results[0], option, str(tmp_path / "pages")).exit_code == 2
        below = invoke("report", results[0], option, str(tmp_path / "file" / "page.html"))
        assert isinstance(below.exception, BadInput)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["after", "before", "file", "pages"]


def _files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_report_and_trace_in_the_same_file_are_refused(
    results: tuple[str, str], tmp_path: Path
) -> None:
    before = _files(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    same = ("-o", str(tmp_path / "link" / "both"), "--trace", str(tmp_path / "both"))
    for words in (same, ("--trace", f"{results[0]}/report.html")):
        refused = invoke("report", results[0], *words)
        assert (refused.exit_code, "the same file" in refused.stderr) == (2, True)
        assert _files(tmp_path) == before


@pytest.mark.parametrize("name", ["summary.json", "requests.jsonl", "server_samples.jsonl"])
@pytest.mark.parametrize("option", ["-o", "--trace"])
def test_report_does_not_overwrite_a_result(
    results: tuple[str, str], tmp_path: Path, option: str, name: str
) -> None:
    before = _files(tmp_path)
    refused = invoke("report", results[0], option, f"{results[0]}/{name}")
    assert isinstance(refused.exception, BadInput)
    assert refused.exception.what == f"{results[0]}/{name} is a file of a benchmark result."
    assert _files(tmp_path) == before


def test_report_of_no_result_is_refused(tmp_path: Path) -> None:
    assert isinstance(invoke("report", str(tmp_path)).exception, BadInput)


@pytest.fixture
def results(tmp_path: Path) -> tuple[str, str]:
    """Return two results, of which the second is 25 % slower."""
    before = store(make_result(runs=3), tmp_path / "before")
    after = store(make_result(runs=3, gap_s=0.025), tmp_path / "after")
    return str(before), str(after)


def test_compare_marks_what_is_worse_in_80_columns(results: tuple[str, str]) -> None:
    result = invoke("compare", *results)
    assert result.exit_code == 0
    row = next(line for line in result.stdout.splitlines() if "itl:p50" in line)
    assert "WORSE" in row
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "between runs (3 and 3 runs, " in result.stderr


def test_compare_fails_beyond_its_limits(results: tuple[str, str]) -> None:
    assert invoke("compare", *results, "--fail-on", "itl:p50>+40%").exit_code == 0
    failed = invoke("compare", *results, "--fail-on", "itl:p50>+5%", "--json")
    assert isinstance(failed.exception, CheckFailed)
    changes = {change["measure"]: change for change in json.loads(failed.stdout)["changes"]}
    assert changes["itl:p50"]["verdict"] == "worse"


def test_compare_refuses_different_workloads_by_default(
    results: tuple[str, str], tmp_path: Path
) -> None:
    other = str(store(make_result(AtConcurrency(3)), tmp_path / "other"))
    refused = invoke("compare", results[0], other)
    assert isinstance(refused.exception, BadInput)
    assert "--allow-different" in refused.exception.next_step
    compared = invoke("compare", results[0], other, "--allow-different")
    assert compared.exit_code == 0
    assert "load.kind" in compared.stdout


def test_compare_requires_two_results_and_not_sweeps(
    results: tuple[str, str], tmp_path: Path
) -> None:
    refused = invoke("compare", str(tmp_path), results[1])
    assert isinstance(refused.exception, BadInput)
    assert "contains 2 results" in refused.exception.what
    assert refused.exception.next_step.endswith(f" {tmp_path / 'after'}")
    assert isinstance(invoke("compare", *results, "--fail-on", "tftt>5%").exception, BadInput)
