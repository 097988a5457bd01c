"""The seams of what runs inside Triton: Triton's own module, and what loads a tokenizer."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tests.fakes import tokenizer as fake_tokenizer
from tests.fakes import triton_utils as fake_triton_utils


@pytest.fixture
def triton_utils(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Triton's module of that name, which exists only inside its Python stub."""
    fake_triton_utils.METRICS.clear()
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", fake_triton_utils)
    return fake_triton_utils


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Transformers, whose every tokenizer is the fake one."""
    monkeypatch.setitem(sys.modules, "transformers", fake_tokenizer)
    return fake_tokenizer
