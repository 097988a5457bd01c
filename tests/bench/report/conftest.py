"""Fixtures that create result folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.samples.bench_results import make_result, store
from trtllm_serve_cli.bench.report.result_reader import StoredResult, read_result
from trtllm_serve_cli.bench.run.benchmark import BenchmarkResult


@pytest.fixture
def keep(tmp_path: Path) -> Callable[..., StoredResult]:
    """Return a function that stores a result, by default a sample, and reads it back."""

    def keep_one(result: BenchmarkResult | None = None, name: str = "result") -> StoredResult:
        return read_result(store(result or make_result(), tmp_path / name))

    return keep_one
