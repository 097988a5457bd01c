"""One benchmark, from its settings to its result."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import platform
import selectors
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version

import numpy as np

from trtllm_serve_cli import __version__
from trtllm_serve_cli.bench import wire
from trtllm_serve_cli.bench.arrivals import AtConcurrency, Load, plan_due_times
from trtllm_serve_cli.bench.core_model import (
    CORE_MODEL,
    CoreModel,
    fetch_core_model,
    open_channel,
    open_sender,
)
from trtllm_serve_cli.bench.load import EncodedRequest, LoadGenerator
from trtllm_serve_cli.bench.records import RequestRecord
from trtllm_serve_cli.bench.statistics import Summary, summarize
from trtllm_serve_cli.bench.workload import RequestSpec, TokenNormDist

FALLBACK_VOCAB_SIZE = 1000
_PROGRESS_PERIOD_S = 0.5


@dataclass(frozen=True, slots=True)
class BenchmarkSettings:
    """What to send, how much of it, and when."""

    workload: TokenNormDist
    load: Load
    num_requests: int = 100
    num_warmup_requests: int = 1
    stream: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is; warm-up requests are not counted."""

    num_requests: int
    num_sent: int
    num_ended: int
    num_failed: int


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """A run's records and figures, and what one needs to know to compare them with another's."""

    settings: BenchmarkSettings
    model: CoreModel
    vocab_size: int
    started_at: str
    is_partial: bool
    records: tuple[RequestRecord, ...]
    summary: Summary
    versions: dict[str, str]
    machine: dict[str, str | int]

    @property
    def error_messages(self) -> list[tuple[str, int]]:
        """Each distinct failure as `kind: message`, with its count, the most frequent first."""
        failed = (r.error for r in self.records if r.error and not r.is_interrupted)
        return Counter(f"{error.kind}: {error.message}" for error in failed).most_common()


def run_benchmark(
    settings: BenchmarkSettings,
    address: str,
    watch: Callable[[Progress], None] = lambda progress: None,
    *,
    core_model: str = CORE_MODEL,
) -> BenchmarkResult:
    """Load the model `core_model` at `address` (gRPC, `host:port`) and measure it.

    `watch` is called about twice a second from the loop that also stamps the responses: let it be
    quick. Ctrl-C ends the load; the result then has what was measured so far, marked partial.
    Raises `NoServer`, `UnknownModel` or `RequestFailed` before any load.
    """
    # select() takes its time-out in microseconds; epoll's are whole milliseconds, rounded up, and
    # every request would be sent up to one late.
    with contextlib.closing(asyncio.SelectorEventLoop(selectors.SelectSelector())) as loop:
        return loop.run_until_complete(_run(settings, address, watch, core_model))


async def _run(
    settings: BenchmarkSettings, address: str, watch: Callable[[Progress], None], core_model: str
) -> BenchmarkResult:
    async with open_channel(address) as channel:
        model = await fetch_core_model(channel, address, core_model)
        vocab_size = model.vocab_size or FALLBACK_VOCAB_SIZE
        warmup_rng, workload_rng, arrivals_rng = np.random.default_rng(settings.seed).spawn(3)
        warmup = settings.workload.draw(settings.num_warmup_requests, vocab_size, warmup_rng)
        specs = settings.workload.draw(settings.num_requests, vocab_size, workload_rng)
        requests = _encode(specs, model, stream=settings.stream)
        send = open_sender(channel, model)
        decode = wire.decode_stream_response if model.is_decoupled else wire.decode_unary_response

        generator = LoadGenerator(send, decode)

        async def run_load() -> None:
            await LoadGenerator(send, decode).run_open(
                _encode(warmup, model, stream=settings.stream), np.zeros(len(warmup))
            )
            await _generate(generator, settings.load, requests, arrivals_rng)

        started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        with _no_collections(), _watching(generator, len(requests), watch):
            is_partial = await _run_until_interrupted(run_load())
    records = tuple(sorted(generator.records, key=lambda record: record.index))
    return BenchmarkResult(
        settings=settings,
        model=model,
        vocab_size=vocab_size,
        started_at=started_at,
        is_partial=is_partial,
        records=records,
        summary=summarize(records, settings.load, streamed=settings.stream),
        versions=_versions(),
        machine=_machine(),
    )


async def _generate(
    generator: LoadGenerator,
    load: Load,
    requests: Sequence[EncodedRequest],
    rng: np.random.Generator,
) -> None:
    if isinstance(load, AtConcurrency):
        await generator.run_closed(requests, load.concurrency)
    else:
        due_s = plan_due_times(load, len(requests), rng)
        await generator.run_open(requests, due_s.tolist())


def _encode(
    specs: Sequence[RequestSpec], model: CoreModel, *, stream: bool
) -> list[EncodedRequest]:
    return [
        EncodedRequest(
            index,
            wire.encode_request(spec, model.name, f"tllm-bench-{index}", stream=stream),
            spec.input_ids.size,
        )
        for index, spec in enumerate(specs)
    ]


async def _run_until_interrupted(work: Awaitable[None]) -> bool:
    """Whether SIGINT ended the work early. A second SIGINT is Python's own again."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        loop.call_soon_threadsafe(task.cancel)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        await asyncio.wait([task])
    finally:
        signal.signal(signal.SIGINT, before)
    if not task.cancelled():
        task.result()
    return task.cancelled()


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Keep the garbage collector out of the run.

    At 1000 requests/s a full collection held everything up by 15 to 25 ms. A run of 15 000 requests
    left 20 objects for it to find, and took the same memory without it.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _watching(
    generator: LoadGenerator, num_requests: int, watch: Callable[[Progress], None]
) -> Iterator[None]:
    def report() -> None:
        watch(
            Progress(num_requests, generator.num_sent, len(generator.records), generator.num_failed)
        )

    async def report_again_and_again() -> None:
        while True:
            await asyncio.sleep(_PROGRESS_PERIOD_S)
            report()

    task = asyncio.ensure_future(report_again_and_again())
    report()
    try:
        yield
    finally:
        task.cancel()
        report()


def _versions() -> dict[str, str]:
    packages = {name: version(name) for name in ("grpcio", "numpy", "tritonclient")}
    return {"tllm": __version__, "python": platform.python_version(), **packages}


def _machine() -> dict[str, str | int]:
    cpus = os.sched_getaffinity(0) if sys.platform == "linux" else range(os.cpu_count() or 1)
    return {
        "platform": platform.platform(),
        "architecture": platform.machine(),
        "num_cpus": os.cpu_count() or 1,
        "num_usable_cpus": len(cpus),
    }
