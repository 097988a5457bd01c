"""Every test has a TLLM_HOME of its own; none can touch the user's.

Several workers may run tests at once, but one that is marked `alone` has the machine for itself.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

# Examples depend on the test alone, so that a run can be repeated; a busy machine fails none.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "tllm-home"
    for name in ("ENGINE_DEST_PATH", "HF_TOKEN", "HF_ENDPOINT", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TLLM_HOME", str(root))
    return root


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long ones first, so that the workers come to their ends together."""
    items.sort(key=lambda item: item.get_closest_marker("e2e") is None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Around the test's timeout, so that waiting for the others does not count."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    with _taking_part(is_alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextmanager
def _taking_part(*, is_alone: bool) -> Iterator[None]:
    """Among the tests of other workers; if `is_alone`, after those and before the next ones."""
    here = Path(__file__)
    with here.open() as room, here.with_name("ports.py").open() as door:
        # Who waits in the door to be alone is not overtaken.
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # Closing is not enough: a process that the test forked has the file, too.
            fcntl.flock(room, fcntl.LOCK_UN)
