"""Fixtures of complete imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.importing.running import Builder
from tests.samples.checkpoints import llama_gguf


@pytest.fixture
def builder() -> Builder:
    return Builder()


@pytest.fixture
def other_gguf(tmp_path: Path) -> str:
    (tmp_path / "other.gguf").write_bytes(llama_gguf())
    return f"gguf:{tmp_path / 'other.gguf'}"
