"""Fixtures of all model tests."""

from __future__ import annotations

import os

import pytest

from trtllm_serve_cli.runtime.worker import stop_forwarding, worker_link


@pytest.fixture(autouse=True)
def own_socket_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name sockets after this process: processes of parallel runs have the same parent process."""
    for module in (stop_forwarding, worker_link):
        monkeypatch.setattr(module, "identify_server", lambda *_: str(os.getpid()))
