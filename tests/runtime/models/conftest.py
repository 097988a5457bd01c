"""Fixtures of all model tests."""

from __future__ import annotations

import os

import pytest

from trtllm_serve_cli.runtime.worker import worker_link


@pytest.fixture(autouse=True)
def own_socket_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name sockets after this process: processes of parallel runs have the same parent process."""
    monkeypatch.setattr(worker_link, "identify_server", lambda *_: str(os.getpid()))
