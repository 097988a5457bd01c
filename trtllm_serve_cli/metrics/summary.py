"""What a snapshot means: the models, the engines behind them, the host.

Counters count since the server (or the model) started; a rate needs an earlier snapshot. A value
that the page does not have is `None`, never zero. Names are those of Triton (`nv_inference_…`,
`nv_cpu_…`, `nv_gpu_…`), of its TensorRT-LLM backend (`nv_trt_llm_…`) and of our engine worker
(`tllm_engine_…`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtllm_serve_cli.metrics.parse import Snapshot

_COMPUTE = ("input", "infer", "output")
_ENGINE_PREFIXES = ("nv_trt_llm_", "tllm_engine_")


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One Triton model. `num_inferences` counts batch rows, `num_succeeded` requests.

    `queue_ms` and `compute_ms` are means over all requests so far that succeeded; `requests_per_s`
    counts those that succeeded since the earlier snapshot.
    """

    model: str
    version: str
    num_succeeded: int | None
    num_failed: int
    failures: Mapping[str, int]
    num_inferences: int | None
    num_pending: int | None
    queue_ms: float | None
    compute_ms: float | None
    requests_per_s: float | None


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One engine: its requests, its paged KV cache (in blocks), its memory, its worker process.

    Of several instances of a model it is their sum, and up only if all of them are.
    """

    model: str
    version: str
    num_active: int | None
    num_scheduled: int | None
    num_context: int | None
    num_waiting: int | None
    max_requests: int | None
    kv_blocks_used: int | None
    kv_blocks_max: int | None
    kv_fraction: float | None
    tokens_per_block: int | None
    memory_bytes: Mapping[str, int]
    iteration: int | None
    iterations_per_s: float | None
    is_worker_up: bool | None
    num_worker_restarts: int | None


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU; `utilization` is from 0 to 1."""

    uuid: str
    utilization: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_w: float | None
    power_limit_w: float | None


@dataclass(frozen=True, slots=True)
class HostRow:
    """The machine that the server runs on; `cpu_utilization` is from 0 to 1."""

    cpu_utilization: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    gpus: tuple[GpuRow, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """One screen of a server's state."""

    models: tuple[ModelRow, ...]
    engines: tuple[EngineRow, ...]
    host: HostRow


def summarize(now: Snapshot, before: Snapshot | None = None) -> Summary:
    """What `now` says; rates since `before`, or none without it."""
    return Summary(
        models=tuple(
            _summarize_model(now, before, model, version)
            for model, version in now.models("nv_inference_")
        ),
        engines=tuple(
            _summarize_engine(now, before, model, version)
            for model, version in now.models(*_ENGINE_PREFIXES)
        ),
        host=HostRow(
            cpu_utilization=now.value("nv_cpu_utilization"),
            memory_used_bytes=_whole(now.value("nv_cpu_memory_used_bytes")),
            memory_total_bytes=_whole(now.value("nv_cpu_memory_total_bytes")),
            gpus=tuple(_summarize_gpu(now, uuid) for uuid in _gpu_uuids(now)),
        ),
    )


def rate_per_s(now: Snapshot, before: Snapshot | None, name: str, **labels: str) -> float | None:
    """How fast a counter grew between two snapshots; `None` when that cannot be known.

    A counter that went down began again at zero in between: what it shows is what came since.
    """
    if before is None or now.taken_at_s <= before.taken_at_s:
        return None
    value, earlier = now.value(name, **labels), before.value(name, **labels)
    if value is None or earlier is None:
        return None
    grown = value - earlier if value >= earlier else value
    return grown / (now.taken_at_s - before.taken_at_s)


def _summarize_model(now: Snapshot, before: Snapshot | None, model: str, version: str) -> ModelRow:
    labels = {"model": model, "version": version}
    failures = {
        sample.labels.get("reason", "OTHER"): int(sample.value)
        for sample in now.find("nv_inference_request_failure", **labels)
        if sample.value
    }
    num_succeeded = _whole(now.value("nv_inference_request_success", **labels))
    return ModelRow(
        model=model,
        version=version,
        num_succeeded=num_succeeded,
        num_failed=sum(failures.values()),
        failures=failures,
        num_inferences=_whole(now.value("nv_inference_count", **labels)),
        num_pending=_whole(now.value("nv_inference_pending_request_count", **labels)),
        queue_ms=_mean_ms(now, ("nv_inference_queue_duration_us",), labels, num_succeeded),
        compute_ms=_mean_ms(
            now,
            tuple(f"nv_inference_compute_{part}_duration_us" for part in _COMPUTE),
            labels,
            num_succeeded,
        ),
        requests_per_s=rate_per_s(now, before, "nv_inference_request_success", **labels),
    )


def _summarize_engine(
    now: Snapshot, before: Snapshot | None, model: str, version: str
) -> EngineRow:
    labels = {"model": model, "version": version}

    def requests(kind: str) -> int | None:
        return _whole(now.value("nv_trt_llm_request_metrics", request_type=kind, **labels))

    def blocks(kind: str) -> float | None:
        name = "nv_trt_llm_kv_cache_block_metrics"
        return now.value(name, kv_cache_block_type=kind, **labels)

    used, most = blocks("used"), blocks("max")
    fraction = used / most if used is not None and most else blocks("fraction")
    per_block = _values(
        now, "nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="tokens_per", **labels
    )
    ups = _values(now, "tllm_engine_worker_up", **labels)
    general = {"general_type": "iteration_counter", **labels}
    return EngineRow(
        model=model,
        version=version,
        num_active=requests("active"),
        num_scheduled=requests("scheduled"),
        num_context=requests("context"),
        num_waiting=requests("waiting"),
        max_requests=requests("max"),
        kv_blocks_used=_whole(used),
        kv_blocks_max=_whole(most),
        kv_fraction=fraction,
        tokens_per_block=_whole(max(per_block, default=None)),
        memory_bytes=_memory(now, labels),
        iteration=_whole(now.value("nv_trt_llm_general_metrics", **general)),
        iterations_per_s=rate_per_s(now, before, "nv_trt_llm_general_metrics", **general),
        is_worker_up=min(ups) > 0 if ups else None,
        num_worker_restarts=_whole(now.value("tllm_engine_worker_restarts", **labels)),
    )


def _memory(now: Snapshot, labels: Mapping[str, str]) -> dict[str, int]:
    memory: dict[str, int] = {}
    for sample in now.find("nv_trt_llm_runtime_memory_metrics", **labels):
        kind = sample.labels.get("memory_type", "")
        memory[kind] = memory.get(kind, 0) + int(sample.value)
    return memory


def _values(now: Snapshot, name: str, **labels: str) -> list[float]:
    return [sample.value for sample in now.find(name, **labels)]


def _summarize_gpu(now: Snapshot, uuid: str) -> GpuRow:
    return GpuRow(
        uuid=uuid,
        utilization=now.value("nv_gpu_utilization", gpu_uuid=uuid),
        memory_used_bytes=_whole(now.value("nv_gpu_memory_used_bytes", gpu_uuid=uuid)),
        memory_total_bytes=_whole(now.value("nv_gpu_memory_total_bytes", gpu_uuid=uuid)),
        power_w=now.value("nv_gpu_power_usage", gpu_uuid=uuid),
        power_limit_w=now.value("nv_gpu_power_limit", gpu_uuid=uuid),
    )


def _gpu_uuids(now: Snapshot) -> list[str]:
    return sorted({s.labels["gpu_uuid"] for s in now.samples if "gpu_uuid" in s.labels})


def _mean_ms(
    now: Snapshot, names: tuple[str, ...], labels: Mapping[str, str], num_requests: int | None
) -> float | None:
    values = [now.value(name, **labels) for name in names]
    known = [value for value in values if value is not None]
    return sum(known) / num_requests / 1000 if known and num_requests else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
