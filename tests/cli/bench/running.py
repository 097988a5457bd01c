"""Run `tllm bench` in this process."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.testing import CliRunner

from tests.fakes.triton.server import FakeTriton
from trtllm_serve_cli.cli.main import app

SMALL = ("--num-requests", "4", "--input-mean", "8", "--output-mean", "4")


def bench(*arguments: str) -> Any:
    return invoke("token-norm-dist", *arguments)


@contextmanager
def interrupting_at(server: FakeTriton, num_requests: int) -> Iterator[None]:
    """Interrupt the block once the server has received this number of requests."""

    def interrupt() -> None:
        while len(server.received) < num_requests:
            time.sleep(0.001)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    yield
    thread.join()


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ("bench", *arguments))
