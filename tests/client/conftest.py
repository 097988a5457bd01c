"""A running fake of Triton for each test that asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client import fake_triton


@pytest.fixture
def triton() -> Iterator[fake_triton.FakeTriton]:
    with fake_triton.serve() as fake:
        yield fake
