"""Define the benchmark settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from trtllm_serve_cli.bench.model.arrivals import AllAtOnce, AtConcurrency, AtRate, AtTimes, Load
from trtllm_serve_cli.bench.model.served_model import InputKind
from trtllm_serve_cli.bench.model.slo import Objective
from trtllm_serve_cli.bench.transport.codec import RequestOptions
from trtllm_serve_cli.bench.workloads.prefixes import MultiTurn
from trtllm_serve_cli.bench.workloads.spec import Workload

_LOAD_KINDS: Mapping[type, str] = MappingProxyType(
    {AllAtOnce: "all_at_once", AtRate: "rate", AtTimes: "trace", AtConcurrency: "concurrency"}
)


@dataclass(frozen=True, slots=True)
class BenchmarkSettings:
    """Settings that determine which requests a benchmark sends, and when.

    If `duration_s` is set, a run sends all requests that are due within `duration_s` seconds.
    Otherwise, or if all requests are due at the start, a run sends `num_requests` requests (fewer
    if a replayed recording is shorter). Random requests depend on `seed`, the run number, the
    request rate and the concurrency, so each of the `repeat` runs sends different requests. With a
    data set, each run continues where the previous run stopped.
    """

    workload: Workload
    load: Load
    num_requests: int = 100
    duration_s: float | None = None
    num_warmup_requests: int = 1
    stream: bool = False
    seed: int = 0
    name: str = "token-norm-dist"
    input_kind: InputKind = "tokens"
    repeat: int = 1
    num_workers: int = 1
    timeout_s: float | None = 600.0
    server_times: bool = False
    objectives: tuple[Objective, ...] = field(default=())
    sample_interval_s: float = 1.0

    @property
    def request_options(self) -> RequestOptions:
        needs_ids = isinstance(self.workload, MultiTurn)
        return RequestOptions(self.stream, self.server_times, self.timeout_s, needs_ids)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a JSON-compatible dict for `summary.json`."""
        load = asdict(self.load)
        load.pop("times_s", None)
        names = (
            "num_requests",
            "duration_s",
            "num_warmup_requests",
            "stream",
            "seed",
            "repeat",
            "num_workers",
            "timeout_s",
        )
        return {
            "workload": self.workload.describe(),
            "load": {"kind": _LOAD_KINDS[type(self.load)], **load},
            **{name: getattr(self, name) for name in names},
            "objectives": [str(objective) for objective in self.objectives],
        }
