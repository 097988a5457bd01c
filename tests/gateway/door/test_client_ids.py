"""Ids of requests that run at the same time, in one process and in several."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trtllm_serve_cli.gateway.door.client_ids import ClientIds

# Holds an id until its standard input ends.
OTHER_PROCESS = """
import sys
from pathlib import Path
from trtllm_serve_cli.gateway.door.client_ids import ClientIds
with ClientIds(Path(sys.argv[1])).hold("demo", sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holding_elsewhere(file: Path, request_id: str) -> Iterator[subprocess.Popen[str]]:
    """Run another process that holds the id."""
    command = (sys.executable, "-c", OTHER_PROCESS, str(file), request_id)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


@pytest.mark.parametrize("is_pool", [False, True], ids=["one process", "pool"])
def test_requests_of_one_process_share_an_id(tmp_path: Path, is_pool: bool) -> None:
    ids = ClientIds(tmp_path / "ids" if is_pool else None)
    with ids.hold("demo", "1") as first:
        assert not ids.is_shared(first)
        with ids.hold("demo", "1") as second, ids.hold("other", "1") as other:
            assert ids.is_shared(first) and ids.is_shared(second)
            assert not ids.is_shared(other)
        assert not ids.is_shared(first)


def test_requests_of_several_processes_share_an_id(tmp_path: Path) -> None:
    file = tmp_path / "ids"
    ids = ClientIds(file)
    with ids.hold("demo", "é" * 99) as held, ids.hold("demo", "2") as other:
        with holding_elsewhere(file, "é" * 99):
            assert ids.is_shared(held)
            assert not ids.is_shared(other)
        assert not ids.is_shared(held)


def test_id_of_a_dead_process_is_not_shared(tmp_path: Path) -> None:
    ids = ClientIds(tmp_path / "ids")
    with ids.hold("demo", "1") as held, holding_elsewhere(tmp_path / "ids", "1") as process:
        process.kill()
        process.wait()
        assert not ids.is_shared(held)


def test_check_does_not_release_the_id(tmp_path: Path) -> None:
    ids = ClientIds(tmp_path / "ids")
    with ids.hold("demo", "1") as held:
        assert not ids.is_shared(held)
        with ids.hold("demo", "1"):
            pass
        with holding_elsewhere(tmp_path / "ids", "1"):
            assert ids.is_shared(held)
