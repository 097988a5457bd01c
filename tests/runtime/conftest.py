"""Fakes of the modules that the runtime imports inside Triton."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tests.fakes import tokenizer as fake_tokenizer
from tests.fakes import triton_utils as fake_triton_utils


@pytest.fixture
def triton_utils(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Install the fake of Triton's module, which exists only inside its Python stub."""
    fake_triton_utils.METRICS.clear()
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", fake_triton_utils)
    return fake_triton_utils


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Install a fake of Transformers, which always loads the fake tokenizer."""
    monkeypatch.setitem(sys.modules, "transformers", fake_tokenizer)
    return fake_tokenizer
