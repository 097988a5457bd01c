"""Sample server metrics during a run, using a separate process for each server.

Parsing the metrics takes several milliseconds. In a worker process, parsing would delay requests
and response timestamps.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from trtllm_serve_cli.bench.generator.interruption import interrupts_blocked
from trtllm_serve_cli.errors import TllmError
from trtllm_serve_cli.metrics.fetch import fetch_metrics
from trtllm_serve_cli.metrics.parse import Snapshot
from trtllm_serve_cli.metrics.summary import summarize
from trtllm_serve_cli.metrics.watch import watch_metrics

_START_S = 20.0
_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class ServerSample:
    """One sample of a server's metrics, or the reason why the metrics could not be read.

    `at_s` is the time on the monotonic clock. `state` is a `metrics.summary.Summary` as a
    dictionary, or `None` if the metrics could not be read. `error` is the reason, or empty if the
    metrics were read.
    """

    target: int
    at_s: float
    state: dict[str, Any] | None = None
    error: str = ""

    def to_json(self, start: float) -> dict[str, Any]:
        """Return the sample as a JSON-compatible dict, for a line of `server_samples.jsonl`.

        In the dict, `at_s` is the time since `start`.
        """
        line = {"at_s": self.at_s - start, "target": self.target}
        return line | (self.state if self.state is not None else {"error": self.error})


@contextlib.contextmanager
def sampling(
    addresses: Mapping[int, str], interval_s: float, samples: list[ServerSample]
) -> Iterator[None]:
    """Sample server metrics while the block runs, then add all samples to `samples`.

    `addresses` maps the index of each target to the address of its metrics endpoint.
    """
    if not addresses:
        yield
        return
    pipes, processes = [], []
    with interrupts_blocked():
        for target, address in addresses.items():
            pipe, process = _spawn(target, address, interval_s)
            pipes.append(pipe)
            processes.append(process)
    try:
        for pipe in pipes:
            # A sampler that has died must not end the run.
            with contextlib.suppress(OSError, EOFError):
                if pipe.poll(_START_S):
                    pipe.recv()
        yield
    finally:
        for pipe, process in zip(pipes, processes, strict=True):
            with contextlib.suppress(OSError, EOFError):
                pipe.send("stop")
                if pipe.poll(interval_s + 2 * _TIMEOUT_S):
                    samples += pipe.recv()
            process.join(timeout=1.0)
            process.kill()


def _spawn(target: int, address: str, interval_s: float) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("spawn")
    parent_end, child_end = context.Pipe()
    process = context.Process(
        target=_sample, args=(child_end, target, address, interval_s), daemon=True
    )
    process.start()
    child_end.close()
    return parent_end, process


def _sample(pipe: Connection, target: int, address: str, interval_s: float) -> None:
    import signal

    # Ctrl-C sends SIGINT to all processes in the terminal's foreground process group. This process
    # ignores the signal, because the parent handles it and sends "stop" to this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    samples: list[ServerSample] = []
    previous: Snapshot | None = None
    pipe.send("ready")

    class Stopped(Exception):
        pass

    def wait(seconds: float) -> None:
        if pipe.poll(seconds):
            raise Stopped

    with contextlib.suppress(Stopped, EOFError, OSError):
        fetch = partial(fetch_metrics, address, _TIMEOUT_S)
        for snapshot in watch_metrics(fetch, interval_s, time.perf_counter, wait):
            if isinstance(snapshot, TllmError):
                samples.append(ServerSample(target, time.perf_counter(), error=snapshot.what))
                continue
            state = asdict(summarize(snapshot, previous))
            samples.append(ServerSample(target, snapshot.taken_at_s, state))
            previous = snapshot
    with contextlib.suppress(OSError):
        pipe.send(samples)
