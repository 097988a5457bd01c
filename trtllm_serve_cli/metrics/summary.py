"""What a snapshot means: the models, the engines behind them, the host.

Counters count since the server (or the model) started; a rate needs an earlier snapshot. A value
that the page does not have is `None`, never zero. Names are those of Triton (`nv_inference_…`,
`nv_cpu_…`, `nv_gpu_…`), of its TensorRT-LLM backend (`nv_trt_llm_…`) and of our models and engine
worker (`tllm_…`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trtllm_serve_cli.metrics.histogram import Latency, read_latency
from trtllm_serve_cli.metrics.parse import Snapshot

_COMPUTE = ("input", "infer", "output")
_ENGINE_PREFIXES = ("nv_trt_llm_", "tllm_engine_")
# Without `_total`, as samples are named.
_OUTCOMES = "tllm_requests"
_SUCCESSES = ("stop", "length")


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One Triton model. `num_inferences` counts batch rows, `num_succeeded` requests.

    Of our models `num_succeeded` and `failures` are what became of clients' requests. Triton's own
    counts, which stand for those of others, take every request of a decoupled model for a success.
    `queue_ms` and `compute_ms` are means over all requests that Triton counts as successes;
    `requests_per_s` counts those that succeeded since the earlier snapshot. `ttft` and `itl` are
    since then, too, or since the server started when there is none.
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
    num_prompt_tokens: int | None = None
    num_generated_tokens: int | None = None
    tokens_per_s: float | None = None
    ttft: Latency | None = None
    itl: Latency | None = None


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One engine: its requests, its paged KV cache (in blocks), its memory, its worker process.

    Of several instances of a model it is their sum, and up only if all of them are. `num_scheduled`
    is the batch size of the last step. `prefix_hit_fraction` is how many of the blocks that prompts
    needed were in the KV cache already. `v1` is what static batching, upstream's V1, tells.
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
    num_generating: int | None = None
    num_paused: int | None = None
    context_tokens: int | None = None
    num_preemptions: int | None = None
    prefix_hit_fraction: float | None = None
    v1: Mapping[str, int] = field(default_factory=dict)


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
    is_ours = bool(now.find(_OUTCOMES, **labels))
    num_counted = _whole(now.value("nv_inference_request_success", **labels))
    failures = _read_failures(now, labels, is_ours=is_ours)
    return ModelRow(
        model=model,
        version=version,
        num_succeeded=_count_successes(now, labels) if is_ours else num_counted,
        num_failed=sum(failures.values()),
        failures=failures,
        num_inferences=_whole(now.value("nv_inference_count", **labels)),
        num_pending=_whole(now.value("nv_inference_pending_request_count", **labels)),
        queue_ms=_mean_ms(now, ("nv_inference_queue_duration_us",), labels, num_counted),
        compute_ms=_mean_ms(
            now,
            tuple(f"nv_inference_compute_{part}_duration_us" for part in _COMPUTE),
            labels,
            num_counted,
        ),
        requests_per_s=(
            sum_known(
                rate_per_s(now, before, _OUTCOMES, outcome=each, **labels) for each in _SUCCESSES
            )
            if is_ours
            else rate_per_s(now, before, "nv_inference_request_success", **labels)
        ),
        num_prompt_tokens=_whole(now.value("tllm_prompt_tokens", **labels)),
        num_generated_tokens=_whole(now.value("tllm_generation_tokens", **labels)),
        tokens_per_s=rate_per_s(now, before, "tllm_generation_tokens", **labels),
        ttft=read_latency(now, before, "tllm_time_to_first_token_seconds", labels),
        itl=read_latency(now, before, "tllm_inter_token_latency_seconds", labels),
    )


def _count_successes(now: Snapshot, labels: Mapping[str, str]) -> int:
    return sum(int(now.value(_OUTCOMES, outcome=each, **labels) or 0) for each in _SUCCESSES)


def _read_failures(now: Snapshot, labels: Mapping[str, str], *, is_ours: bool) -> dict[str, int]:
    """Why requests failed -> how many, where there are any."""
    name, label = (_OUTCOMES, "outcome") if is_ours else ("nv_inference_request_failure", "reason")
    failures: dict[str, int] = {}
    for sample in now.find(name, **labels):
        reason = sample.labels.get(label, "OTHER").lower()
        if sample.value and reason not in _SUCCESSES:
            failures[reason] = failures.get(reason, 0) + int(sample.value)
    return failures


def sum_known(values: Iterable[float | None]) -> float | None:
    """`None` where nothing is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


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
    batcher = "nv_trt_llm_inflight_batcher_metrics"

    def batched(kind: str) -> int | None:
        return _whole(now.value(batcher, inflight_batcher_specific_metric=kind, **labels))

    hits = now.value("tllm_prefix_cache_hits", **labels)
    queries = now.value("tllm_prefix_cache_queries", **labels)
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
        memory_bytes=_by_label(now, "nv_trt_llm_runtime_memory_metrics", "memory_type", labels),
        iteration=_whole(now.value("nv_trt_llm_general_metrics", **general)),
        iterations_per_s=rate_per_s(now, before, "nv_trt_llm_general_metrics", **general),
        is_worker_up=min(ups) > 0 if ups else None,
        num_worker_restarts=_whole(now.value("tllm_engine_worker_restarts", **labels)),
        num_generating=batched("generation_requests"),
        num_paused=batched("paused_requests"),
        context_tokens=batched("total_context_tokens"),
        num_preemptions=_whole(now.value("tllm_preemptions", **labels)),
        prefix_hit_fraction=hits / queries if hits is not None and queries else None,
        v1=_by_label(now, "nv_trt_llm_v1_metrics", "v1_specific_metric", labels),
    )


def _by_label(now: Snapshot, name: str, label: str, labels: Mapping[str, str]) -> dict[str, int]:
    figures: dict[str, int] = {}
    for sample in now.find(name, **labels):
        kind = sample.labels.get(label, "")
        figures[kind] = figures.get(kind, 0) + int(sample.value)
    return figures


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
