"""Provide a fake Triton as a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.triton.server import FakeTriton


@pytest.fixture
def server() -> Iterator[FakeTriton]:
    with FakeTriton() as fake:
        yield fake
