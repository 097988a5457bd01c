"""Sample the resources of a server's processes, and find resources that grow."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from cpu import WORKER, part_of

from trtllm_serve_cli.errors import TllmError
from trtllm_serve_cli.launch.server_state import read_state
from trtllm_serve_cli.launch.servers.running import RunningServer

SHARED_MEMORY = Path("/dev/shm")
# The median of the last part of a series is compared with the median of its first part.
_NUM_PARTS = 3
# A shorter series is not compared, because a single request can change its medians.
_MIN_SAMPLES = 12


@dataclass(frozen=True, slots=True)
class Quantity:
    """A resource of a process, and the limit for the growth of its median.

    The median may grow by `allowance` plus the fraction `share` of the earlier median.
    """

    name: str
    unit: str
    allowance: float
    share: float = 0.0

    def limit(self, before: float) -> float:
        return before + self.allowance + self.share * before


QUANTITIES = {
    "memory_mb": Quantity("memory", "MB", 8.0, 0.05),
    "descriptors": Quantity("file descriptors", "", 4.0),
    # The models' thread pools grow to the largest number of concurrent requests, so by at most the
    # number of clients.
    "threads": Quantity("threads", "", 12.0),
    "shared_files": Quantity("shared-memory files", "", 0.0),
    "shared_mb": Quantity("shared memory", "MB", 2.0, 0.05),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """The resources of one process. `at_s` is relative to the start of the soak test.

    `memory_mb` is the resident memory without memory that other processes can share. The shared
    memory of the whole server is attributed to Triton's process.
    """

    at_s: float
    part: str
    pid: int
    memory_mb: float
    descriptors: int
    threads: int
    shared_files: int = 0
    shared_mb: float = 0.0


@dataclass(frozen=True, slots=True)
class Growth:
    """The medians of the first and the last part of a series, after the warm-up."""

    part: str
    pid: int
    quantity: Quantity
    before: float
    after: float
    limit: float
    duration_s: float

    @property
    def problem(self) -> str:
        """The message for a growth above the limit, or ""."""
        if self.after <= self.limit:
            return ""
        return (
            f"the {self.quantity.name} of {self.part} (process {self.pid}) grew from "
            f"{self.before:.1f} to {self.after:.1f} {self.quantity.unit}".rstrip()
            + f" in {self.duration_s:.0f} s; the limit is {self.limit:.1f}"
        )


def measure_growth(
    samples: Iterable[Sample], warmup_s: float, worker_growth_mb: float = 0.0
) -> list[Growth]:
    """Compare the parts of each series, without its first `warmup_s` seconds.

    A process that was restarted begins a new series. The memory of an engine worker may grow by
    `worker_growth_mb` more than that of other processes.
    """
    series: dict[tuple[str, int], list[Sample]] = {}
    for sample in samples:
        series.setdefault((sample.part, sample.pid), []).append(sample)
    warm = {
        key: [each for each in found if each.at_s >= found[0].at_s + warmup_s]
        for key, found in series.items()
    }
    return [
        _compare(name, found, worker_growth_mb if (part, name) == (WORKER, "memory_mb") else 0.0)
        for (part, _), found in sorted(warm.items())
        if len(found) >= _MIN_SAMPLES
        for name in QUANTITIES
        if not name.startswith("shared") or any(each.shared_files for each in found)
    ]


def _compare(name: str, samples: Sequence[Sample], extra: float) -> Growth:
    size, quantity, first = len(samples) // _NUM_PARTS, QUANTITIES[name], samples[0]

    def median(chosen: Sequence[Sample]) -> float:
        return float(statistics.median(getattr(each, name) for each in chosen))

    before, after = median(samples[:size]), median(samples[-size:])
    limit, duration_s = quantity.limit(before) + extra, samples[-1].at_s - first.at_s
    return Growth(first.part, first.pid, quantity, before, after, limit, duration_s)


def processes_of(server: RunningServer) -> list[psutil.Process]:
    """Return the server's supervisor and all its descendants."""
    supervisor = psutil.Process(server.state.supervisor_pid)
    return [supervisor, *supervisor.children(recursive=True)]


def name_of(process: psutil.Process) -> str:
    """Return the name of the process's part of the server."""
    command = " ".join(process.cmdline())
    for word, name in (
        ("trtllm_serve_cli.launch.supervisor", "supervisor"),
        ("trtllm_serve_cli.gateway", "gateway"),
        ("reaper.py", "reaper"),
        ("grammar_check", "grammar check"),
    ):
        if word in command:
            return name
    return part_of(process)


def find_part(server: RunningServer, part: str) -> psutil.Process | None:
    """Return the process of this part, or None while the part is being restarted."""
    for process in processes_of(server):
        with contextlib.suppress(psutil.Error):
            if name_of(process) == part and process.status() != psutil.STATUS_ZOMBIE:
                return process
    return None


def list_shared_memory(server: RunningServer) -> list[Path]:
    """Return the server's files in shared memory."""
    return sorted(SHARED_MEMORY.glob(f"{server.plan.region_prefix}*"))


def take_samples(server: RunningServer, at_s: float) -> Iterator[Sample]:
    """Sample each process of the server once."""
    for process in processes_of(server):
        with contextlib.suppress(psutil.Error, OSError):
            part, memory = name_of(process), process.memory_info()
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            files = list_shared_memory(server) if part == "tritonserver" else []
            yield Sample(
                round(at_s, 2),
                part,
                process.pid,
                round((memory.rss - memory.shared) / 1e6, 2),
                process.num_fds(),
                process.num_threads(),
                len(files),
                round(sum(each.stat().st_size for each in files) / 1e6, 2),
            )


@dataclass
class Watch:
    """The samples of a server's processes, and its number of used slots over time."""

    samples: list[Sample] = field(default_factory=list)
    slots: list[tuple[float, float]] = field(default_factory=list)


@contextlib.contextmanager
def watching(
    server: RunningServer, period_s: float, read_slots: Callable[[], float]
) -> Iterator[Watch]:
    """Yield a watch that receives samples while the server is ready."""
    watch, is_over, started_s = Watch(), threading.Event(), time.monotonic()

    def sample() -> None:
        while not is_over.wait(period_s):
            state, at_s = read_state(server.directory), time.monotonic() - started_s
            if state is not None and state.phase == "ready":
                with contextlib.suppress(psutil.Error):
                    watch.samples.extend(take_samples(server, at_s))
                with contextlib.suppress(TllmError):
                    watch.slots.append((round(at_s, 2), read_slots()))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        is_over.set()
        thread.join()
