"""Ctrl-C in a terminal, which sends SIGINT to `tllm bench` and all its worker processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.fakes.triton.server import FakeTriton
from tests.waiting import wait_until

NUM_REQUESTS = 1000
COMMAND = (
    sys.executable, "-m", "trtllm_serve_cli.cli", "bench", "token-norm-dist", "--workers", "2",
    "--concurrency", "8", "--num-requests", str(NUM_REQUESTS), "--input-mean", "8",
    "--output-mean", "4",
)  # fmt: skip


@pytest.fixture
def server() -> Iterator[FakeTriton]:
    with FakeTriton(ttft_s=0.01) as fake:
        yield fake


def start_bench(server: FakeTriton, *options: str) -> subprocess.Popen[str]:
    """Start a benchmark with two workers in its own process group."""
    return subprocess.Popen(
        (*COMMAND, "-u", server.endpoint.grpc, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def press_ctrl_c(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Send SIGINT to the process group, and return the output on stdout and stderr."""
    os.killpg(process.pid, signal.SIGINT)
    return process.communicate(timeout=60)


# The processes are the two workers and the process in which multiprocessing tracks resources.
@pytest.mark.parametrize("num_processes", [1, 2, 3])
def test_interrupt_while_workers_start(server: FakeTriton, num_processes: int) -> None:
    with start_bench(server) as process:
        children = psutil.Process(process.pid).children
        wait_until(lambda: len(children()) >= num_processes or process.poll() is not None)
        _, err = press_ctrl_c(process)
    assert (process.returncode, "Traceback" in err) == (130, False)


def test_interrupt_during_the_warm_up(server: FakeTriton) -> None:
    server.sticks_at = 1
    with start_bench(server, "--warmup", "1") as process:
        wait_until(lambda: server.received)
        _, err = press_ctrl_c(process)
    assert (process.returncode, "Traceback" in err) == (130, False)


def test_interrupt_between_runs_prints_the_figures(server: FakeTriton) -> None:
    """The interrupt arrives when the first run ends, or when the workers of the second start."""
    with start_bench(server, "--warmup", "0", "--repeat", "60") as process:
        wait_until(lambda: len(server.received) == NUM_REQUESTS)
        out, err = press_ctrl_c(process)
    assert (process.returncode, "Traceback" in err) == (130, False)
    assert len(server.received) < 3 * NUM_REQUESTS
    assert "Requests/Sec" in out and "the results are partial." in err


def test_interrupt_during_the_measurement_prints_the_figures(server: FakeTriton) -> None:
    with start_bench(server, "--warmup", "0") as process:
        wait_until(lambda: len(server.received) > 50)
        out, err = press_ctrl_c(process)
    assert (process.returncode, "Traceback" in err) == (130, False)
    assert "Requests/Sec" in out and "the results are partial." in err
