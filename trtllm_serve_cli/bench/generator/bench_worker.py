"""Send one worker's share of a run's requests from a single event loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import selectors
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from trtllm_serve_cli.bench.generator.client_health import WorkerLoad, monitor_client
from trtllm_serve_cli.bench.generator.load_generator import LoadGenerator, ReadyRequest
from trtllm_serve_cli.bench.generator.worker_plan import Share, Stream
from trtllm_serve_cli.bench.model.records import RequestRecord
from trtllm_serve_cli.bench.model.served_model import ServedModel
from trtllm_serve_cli.bench.transport.codec import RequestOptions
from trtllm_serve_cli.bench.transport.connection import Connection
from trtllm_serve_cli.bench.transport.grpc_connection import GrpcConnection
from trtllm_serve_cli.bench.transport.http_connection import HttpConnection
from trtllm_serve_cli.bench.transport.openai_connection import OpenAIConnection
from trtllm_serve_cli.client.generate import Interface
from trtllm_serve_cli.processes import raise_open_file_limit

_PROGRESS_PERIOD_S = 0.5
# select() supports only file descriptors below 1024. The limit for sockets is lower, because the
# process also needs descriptors for other files.
_MOST_SOCKETS = 900
_CONNECTIONS: dict[Interface, Callable[[ServedModel, RequestOptions], Connection]] = {
    "grpc": GrpcConnection,
    "http": HttpConnection,
    "openai": OpenAIConnection,
}


@dataclass(frozen=True, slots=True)
class Counts:
    """The request counts so far, for one worker or summed over all workers.

    `num_ended` includes failed and interrupted requests. Warm-up requests are not counted.
    """

    num_sent: int = 0
    num_ended: int = 0
    num_failed: int = 0


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """The measurements from one worker.

    - `load` is the load on the worker process.
    - `start` is the run's start time on the monotonic clock.
    - `was_interrupted` is true if the run was cancelled.
    - `is_server_lost` is true if every contacted target became unreachable.
    - `num_uncounted` is the number of completed responses for which the server did not report a
      token count.
    - `texts` contains the texts of responses without a token count, keyed by request index and
      turn. It is empty if the share's `keeps_text` is false.
    """

    records: tuple[RequestRecord, ...]
    load: WorkerLoad
    start: float
    was_interrupted: bool
    is_server_lost: bool
    num_uncounted: int
    texts: dict[tuple[int, int], str]


def make_loop(share: Share) -> asyncio.AbstractEventLoop:
    """Return an event loop for `run_share`.

    The loop uses select() if possible, because select() timeouts have microsecond resolution. epoll
    rounds timeouts up to whole milliseconds, so requests would be sent up to 1 ms late. Over HTTP,
    each request in flight needs a socket. With a high or unlimited concurrency, select() supports
    too few sockets, so the loop uses Python's default selector (epoll on Linux), and the limit on
    open files is raised.
    """
    is_http = any(model.interface != "grpc" for model in share.models)
    # Each target keeps its idle connections, up to the concurrency.
    if is_http and (
        share.concurrency is None or share.concurrency * len(share.models) > _MOST_SOCKETS
    ):
        raise_open_file_limit()
        return asyncio.SelectorEventLoop()
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


async def run_share(
    share: Share,
    wait_for_start: Callable[[], Awaitable[float]],
    report: Callable[[Counts], None],
    register_cancel: Callable[[Callable[[], object]], None],
) -> WorkerResult:
    """Send the share's requests, starting at the monotonic time that `wait_for_start` returns.

    If the number of requests is limited, all requests except the later turns of conversations are
    encoded before the run starts. The warm-up requests also finish before the run starts. `report`
    is called about twice a second. It must be fast, because the event loop that calls it also
    timestamps responses. `register_cancel` receives a function that ends the run early and keeps
    the measurements. Call that function only from the event loop's thread.
    """
    connections = [
        _CONNECTIONS[model.interface](model, share.request_options) for model in share.models
    ]
    generator = LoadGenerator(connections, ramp_s=share.ramp_s, keeps_text=share.keeps_text)
    loads: list[WorkerLoad] = []
    try:
        requests = _encode(share, connections)
        task = asyncio.ensure_future(
            _run(share, generator, requests, wait_for_start, loads, report)
        )
        register_cancel(task.cancel)
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
    finally:
        for connection in connections:
            await connection.close()
    return WorkerResult(
        records=tuple(sorted(generator.records, key=lambda record: (record.index, record.turn))),
        load=loads[0] if loads else WorkerLoad(0.0, 0.0, 0.0, ()),
        start=generator.start,
        was_interrupted=task.cancelled(),
        is_server_lost=generator.is_server_lost,
        num_uncounted=generator.num_uncounted,
        texts=generator.texts,
    )


async def _run(
    share: Share,
    generator: LoadGenerator,
    requests: Iterator[ReadyRequest],
    wait_for_start: Callable[[], Awaitable[float]],
    loads: list[WorkerLoad],
    report: Callable[[Counts], None],
) -> None:
    await _warm_up(share, generator.connections)
    with _garbage_collection_disabled():
        start = await wait_for_start()
        with monitor_client(loads), _reporting_progress(generator, report):
            if share.due_s is not None:
                await generator.run_open(requests, share.due_s, share.concurrency, start)
            else:
                concurrency = share.concurrency or 1
                await generator.run_closed(requests, concurrency, share.duration_s, start)


async def _warm_up(share: Share, connections: Sequence[Connection]) -> None:
    """Send all warm-up requests to all targets, with the share's concurrency.

    Wait for the responses.
    """
    ready = [
        ReadyRequest(index, connection.encode(spec, f"tllm-warm-up-{index}"), spec, target)
        for target, connection in enumerate(connections)
        for index, spec in enumerate(share.warmup)
    ]
    await LoadGenerator(connections).run_open(ready, [0.0] * len(ready), share.concurrency)


def _encode(share: Share, connections: Sequence[Connection]) -> Iterator[ReadyRequest]:
    """Return the encoded requests.

    Requests in a `Stream` are encoded on demand, because a stream is endless.
    """
    ready = (
        ReadyRequest(
            index,
            connections[target].encode(spec, f"tllm-bench-{index}"),
            spec,
            target,
        )
        for index, target, spec in share.numbered()
    )
    return ready if isinstance(share.specs, Stream) else iter(list(ready))


@contextlib.contextmanager
def _garbage_collection_disabled() -> Iterator[None]:
    """Disable the garbage collector during the run, because garbage collection delays requests.

    At 1,000 requests/s, a full collection paused the process for 15 to 25 ms. Runs do not need the
    collector: after 15,000 requests, it could have freed only 20 objects, and memory use was the
    same as with the collector enabled.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _reporting_progress(
    generator: LoadGenerator, report: Callable[[Counts], None]
) -> Iterator[None]:
    def report_now() -> None:
        report(Counts(generator.num_sent, len(generator.records), generator.num_failed))

    async def report_periodically() -> None:
        while True:
            await asyncio.sleep(_PROGRESS_PERIOD_S)
            report_now()

    task = asyncio.ensure_future(report_periodically())
    report_now()
    try:
        yield
    finally:
        task.cancel()
        report_now()


async def start_now() -> float:
    """Return the current time, so that a single worker starts immediately."""
    return time.perf_counter()
