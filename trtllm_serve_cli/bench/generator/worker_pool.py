"""Run one worker in this process, or several workers in separate processes."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from trtllm_serve_cli.bench.generator.bench_worker import (
    Counts,
    WorkerResult,
    make_loop,
    run_share,
    start_now,
)
from trtllm_serve_cli.bench.generator.interruption import Interruption, interrupts_blocked
from trtllm_serve_cli.bench.generator.worker_plan import Share
from trtllm_serve_cli.processes import SINGLE_THREADED, die_with_parent

# Delay between the start message and the start of the run, so that every worker receives the
# message in time.
_START_DELAY_S = 0.2
_PERIOD_S = 0.5


def run_workers(
    shares: Sequence[Share], watch: Callable[[Counts], None], interruption: Interruption
) -> list[WorkerResult]:
    """Run all shares in parallel and return the result of each worker.

    All workers start at the same time on the machine's monotonic clock. `watch` receives the total
    counts about twice a second or, with several workers, more often. An interrupt ends the run
    early. Raise `RuntimeError` if a worker process exits without a result.
    """
    if len(shares) == 1:
        return [_run_in_process(shares[0], watch, interruption)]
    return _run_in_subprocesses(shares, watch, interruption)


def _run_in_process(
    share: Share, watch: Callable[[Counts], None], interruption: Interruption
) -> WorkerResult:
    with contextlib.closing(make_loop(share)) as loop:

        def register_cancel(cancel: Callable[[], object]) -> None:
            def cancel_soon() -> None:
                with contextlib.suppress(RuntimeError):  # The loop is closed after the run.
                    loop.call_soon_threadsafe(cancel)

            interruption.actions.append(cancel_soon)
            if interruption.has_occurred:
                cancel()

        return loop.run_until_complete(run_share(share, start_now, watch, register_cancel))


def _run_in_subprocesses(
    shares: Sequence[Share], watch: Callable[[Counts], None], interruption: Interruption
) -> list[WorkerResult]:
    pipes: list[Connection] = []
    processes: list[BaseProcess] = []
    interruption.actions.append(lambda: _send_all(pipes, "stop"))
    try:
        with interrupts_blocked():
            for share in shares:
                pipe, process = _spawn(share)
                pipes.append(pipe)
                processes.append(process)
        if interruption.has_occurred:
            # Send the message again for workers that were spawned after the interrupt.
            _send_all(pipes, "stop")
        return _collect(pipes, watch)
    finally:
        for process in processes:
            process.join(timeout=1.0)
            process.kill()


def _spawn(share: Share) -> tuple[Connection, BaseProcess]:
    # The process inherits this environment.
    for name, value in SINGLE_THREADED.items():
        os.environ.setdefault(name, value)
    context = multiprocessing.get_context("spawn")
    parent_end, child_end = context.Pipe()
    process = context.Process(target=_worker_main, args=(child_end, share), daemon=True)
    process.start()
    child_end.close()
    return parent_end, process


def _collect(pipes: Sequence[Connection], watch: Callable[[Counts], None]) -> list[WorkerResult]:
    results: dict[int, WorkerResult] = {}
    counts = [Counts()] * len(pipes)
    num_ready = 0
    while len(results) < len(pipes):
        working = [pipe for worker, pipe in enumerate(pipes) if worker not in results]
        for pipe in wait(working, _PERIOD_S):
            assert isinstance(pipe, Connection)
            worker = pipes.index(pipe)
            match _receive(pipe):
                case "ready":
                    num_ready += 1
                    if num_ready == len(pipes):
                        _send_all(pipes, time.perf_counter() + _START_DELAY_S)
                case Counts() as reported:
                    counts[worker] = reported
                case WorkerResult() as result:
                    results[worker] = result
        watch(
            Counts(
                sum(each.num_sent for each in counts),
                sum(each.num_ended for each in counts),
                sum(each.num_failed for each in counts),
            )
        )
    return [results[worker] for worker in range(len(pipes))]


def _receive(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError as error:
        raise RuntimeError("a benchmark worker process exited without a result") from error


def _send_all(pipes: Sequence[Connection], message: object) -> None:
    for pipe in pipes:
        with contextlib.suppress(OSError):
            pipe.send(message)


def _worker_main(pipe: Connection, share: Share) -> None:
    die_with_parent()
    # Ctrl-C sends SIGINT to all processes in the terminal's foreground process group. The workers
    # ignore the signal, because the parent handles it and sends "stop" to every worker.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.closing(make_loop(share)) as loop:
        asyncio.set_event_loop(loop)
        pipe.send(loop.run_until_complete(_run_worker(pipe, share)))


async def _run_worker(pipe: Connection, share: Share) -> WorkerResult:
    loop = asyncio.get_running_loop()
    start_time: asyncio.Future[float] = loop.create_future()
    cancels: list[Callable[[], object]] = []

    def receive_message() -> None:
        message = pipe.recv()
        if message == "stop":
            while cancels:
                cancels.pop()()
        elif not start_time.done():
            start_time.set_result(message)

    async def wait_for_start() -> float:
        pipe.send("ready")
        return await start_time

    loop.add_reader(pipe.fileno(), receive_message)
    try:
        return await run_share(share, wait_for_start, pipe.send, cancels.append)
    finally:
        loop.remove_reader(pipe.fileno())
