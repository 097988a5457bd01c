"""Summarize the metrics in a snapshot by model, engine, GPU and machine.

Counters start at zero when the server or the model starts, so a rate requires an earlier snapshot.
Values that are missing from the metrics page are `None`, not zero.

Triton publishes `nv_inference_…`, `nv_cpu_…` and `nv_gpu_…`. Triton's TensorRT-LLM backend
publishes `nv_trt_llm_…`. This project's models publish `tllm_…` and some `nv_trt_llm_…` families.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trtllm_serve_cli.metrics import catalog
from trtllm_serve_cli.metrics.histogram import Latency, read_latency
from trtllm_serve_cli.metrics.parse import Snapshot
from trtllm_serve_cli.runtime.telemetry.families import (
    BATCHER,
    ENGINE_MEMORY,
    ENGINE_REQUESTS,
    GENERATION_TOKENS,
    ITL,
    KV_BLOCKS,
    PREEMPTIONS,
    PREFIX_HITS,
    PREFIX_QUERIES,
    PROMPT_TOKENS,
    REQUESTS,
    STEPS,
    TTFT,
    WORKER_RESTARTS,
    WORKER_UP,
    Family,
)

_MODEL_PREFIX = "nv_inference_"
_ENGINE_PREFIXES = ("nv_trt_llm_", "tllm_engine_")
_COMPUTE = (
    catalog.COMPUTE_INPUT_DURATION,
    catalog.COMPUTE_INFER_DURATION,
    catalog.COMPUTE_OUTPUT_DURATION,
)
_SUCCESSES = ("stop", "length")


@dataclass(frozen=True, slots=True)
class ModelRow:
    """The metrics of one Triton model.

    For this project's models, `num_succeeded` and `failures` count client requests by outcome. For
    other models, they contain Triton's counts. Triton counts every request to a decoupled model as
    successful.

    - `failures` maps failure reasons to numbers of requests.
    - `num_inferences` counts each row of a batch.
    - `num_pending` is the number of requests in Triton's queue.
    - `queue_ms` and `compute_ms` are means over the requests that Triton counts as successful.
    - `requests_per_s` is the rate of successful requests since the earlier snapshot.
    - `tokens_per_s` is the rate of generated tokens since the earlier snapshot.
    - All times cover the time since the earlier snapshot, or since the server started if there is
      no earlier snapshot.
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
    """The request, KV cache, memory and worker metrics of one engine.

    If a model has several instances, the counts are sums over all instances.

    - `num_scheduled` is the number of requests in the last step.
    - `num_context` is the number of requests in the context phase (prompt processing).
    - `num_waiting` is the number of requests that are waiting in the engine.
    - `max_requests` is the maximum batch size.
    - `kv_fraction` is the fraction of KV cache blocks in use.
    - `memory_bytes` maps memory types (cpu, gpu, pinned) to the memory in use.
    - `iteration` is the number of steps since the engine started.
    - `is_worker_up` is true only if the workers of all instances are running.
    - `prefix_hit_fraction` is the fraction of prompt blocks that were already in the KV cache.
    - `num_kv_transfers` is the number of requests whose KV cache was transferred between
      disaggregated servers.
    - `kv_transfer_ms` is the mean transfer time since the earlier snapshot, or since the server
      started if there is no earlier snapshot.
    - `v1` contains the metrics for static batching, which TensorRT-LLM calls V1.
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
    num_kv_transfers: int | None = None
    kv_transfer_ms: float | None = None
    v1: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuRow:
    """The metrics of one GPU. `utilization` ranges from 0 to 1."""

    uuid: str
    utilization: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_w: float | None
    power_limit_w: float | None


@dataclass(frozen=True, slots=True)
class HostRow:
    """The metrics of the server's machine. `cpu_utilization` ranges from 0 to 1."""

    cpu_utilization: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    gpus: tuple[GpuRow, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """The metrics of a server's models, engines and machine."""

    models: tuple[ModelRow, ...]
    engines: tuple[EngineRow, ...]
    host: HostRow


def summarize(now: Snapshot, before: Snapshot | None = None) -> Summary:
    """Summarize the snapshot `now`.

    Rates cover the time since the snapshot `before`. If `before` is `None`, the rates are `None`.
    """
    return Summary(
        models=tuple(
            _summarize_model(now, before, model, version)
            for model, version in now.models(_MODEL_PREFIX)
        ),
        engines=tuple(
            _summarize_engine(now, before, model, version)
            for model, version in now.models(*_ENGINE_PREFIXES)
        ),
        host=HostRow(
            cpu_utilization=now.value(catalog.CPU_UTILIZATION.name),
            memory_used_bytes=_whole(now.value(catalog.CPU_MEMORY_USED.name)),
            memory_total_bytes=_whole(now.value(catalog.CPU_MEMORY_TOTAL.name)),
            gpus=tuple(_summarize_gpu(now, uuid) for uuid in _gpu_uuids(now)),
        ),
    )


def rate_per_s(now: Snapshot, before: Snapshot | None, name: str, **labels: str) -> float | None:
    """Return the rate of increase of a counter between two snapshots, or `None` if unknown.

    If the later value is lower, the counter was reset to zero, so its increase is the later value.
    """
    if before is None or now.taken_at_s <= before.taken_at_s:
        return None
    grown = _increase(now, before, name, labels)
    if grown is None or before.value(name, **labels) is None:
        return None
    return grown / (now.taken_at_s - before.taken_at_s)


def _increase(
    now: Snapshot, before: Snapshot | None, name: str, labels: Mapping[str, str]
) -> float | None:
    """Return the increase of a counter since `before`, or `None` if `now` does not contain it.

    Return its value if there is no earlier snapshot, or if the counter is new or was reset to zero.
    """
    value = now.value(name, **labels)
    earlier = None if before is None else before.value(name, **labels)
    if value is None or earlier is None or value < earlier:
        return value
    return value - earlier


def _summarize_model(now: Snapshot, before: Snapshot | None, model: str, version: str) -> ModelRow:
    labels = {"model": model, "version": version}
    is_ours = bool(now.find(REQUESTS.name, **labels))
    num_counted = _whole(now.value(catalog.SUCCESSES.name, **labels))
    failures = _read_failures(now, labels, is_ours=is_ours)
    return ModelRow(
        model=model,
        version=version,
        num_succeeded=_count_successes(now, labels) if is_ours else num_counted,
        num_failed=sum(failures.values()),
        failures=failures,
        num_inferences=_whole(now.value(catalog.INFERENCES.name, **labels)),
        num_pending=_whole(now.value(catalog.PENDING.name, **labels)),
        queue_ms=_mean_ms(now, before, (catalog.QUEUE_DURATION,), labels),
        compute_ms=_mean_ms(now, before, _COMPUTE, labels),
        requests_per_s=(
            sum_known(
                rate_per_s(now, before, REQUESTS.name, **REQUESTS.own_label(each), **labels)
                for each in _SUCCESSES
            )
            if is_ours
            else rate_per_s(now, before, catalog.SUCCESSES.name, **labels)
        ),
        num_prompt_tokens=_whole(now.value(PROMPT_TOKENS.name, **labels)),
        num_generated_tokens=_whole(now.value(GENERATION_TOKENS.name, **labels)),
        tokens_per_s=rate_per_s(now, before, GENERATION_TOKENS.name, **labels),
        ttft=read_latency(now, before, TTFT.name, labels),
        itl=read_latency(now, before, ITL.name, labels),
    )


def _count_successes(now: Snapshot, labels: Mapping[str, str]) -> int:
    counts = (_read(now, REQUESTS, each, labels) for each in _SUCCESSES)
    return sum(int(count or 0) for count in counts)


def _read_failures(now: Snapshot, labels: Mapping[str, str], *, is_ours: bool) -> dict[str, int]:
    """Return the number of failed requests for each reason, omitting reasons without failures."""
    family = REQUESTS if is_ours else catalog.FAILURES
    failures: dict[str, int] = {}
    for sample in now.find(family.name, **labels):
        reason = sample.labels.get(family.label, "OTHER").lower()
        if sample.value and reason not in _SUCCESSES:
            failures[reason] = failures.get(reason, 0) + int(sample.value)
    return failures


def sum_known(values: Iterable[float | None]) -> float | None:
    """Return the sum of the values that are not `None`, or `None` if all values are `None`."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _summarize_engine(
    now: Snapshot, before: Snapshot | None, model: str, version: str
) -> EngineRow:
    labels = {"model": model, "version": version}

    def read(family: Family, kind: str = "") -> float | None:
        return _read(now, family, kind, labels)

    def increase(family: Family, kind: str) -> float | None:
        return _increase(now, before, family.name, {**family.own_label(kind), **labels})

    used, most = read(KV_BLOCKS, "used"), read(KV_BLOCKS, "max")
    fraction = used / most if used is not None and most else read(KV_BLOCKS, "fraction")
    per_block = _values(now, KV_BLOCKS, {**KV_BLOCKS.own_label("tokens_per"), **labels})
    ups = _values(now, WORKER_UP, labels)
    steps = {**STEPS.own_label("iteration_counter"), **labels}
    num_transferred = increase(catalog.KV_TRANSFERS, "request_count")
    transferred_ms = increase(catalog.KV_TRANSFERS, "kv_cache_transfer_ms")
    hits, queries = read(PREFIX_HITS), read(PREFIX_QUERIES)
    return EngineRow(
        model=model,
        version=version,
        num_active=_whole(read(ENGINE_REQUESTS, "active")),
        num_scheduled=_whole(read(ENGINE_REQUESTS, "scheduled")),
        num_context=_whole(read(ENGINE_REQUESTS, "context")),
        num_waiting=_whole(read(ENGINE_REQUESTS, "waiting")),
        max_requests=_whole(read(ENGINE_REQUESTS, "max")),
        kv_blocks_used=_whole(used),
        kv_blocks_max=_whole(most),
        kv_fraction=fraction,
        tokens_per_block=_whole(max(per_block, default=None)),
        memory_bytes=_by_label(now, ENGINE_MEMORY, labels),
        iteration=_whole(now.value(STEPS.name, **steps)),
        iterations_per_s=rate_per_s(now, before, STEPS.name, **steps),
        is_worker_up=min(ups) > 0 if ups else None,
        num_worker_restarts=_whole(read(WORKER_RESTARTS)),
        num_generating=_whole(read(BATCHER, "generation_requests")),
        num_paused=_whole(read(BATCHER, "paused_requests")),
        context_tokens=_whole(read(BATCHER, "total_context_tokens")),
        num_preemptions=_whole(read(PREEMPTIONS)),
        prefix_hit_fraction=hits / queries if hits is not None and queries else None,
        num_kv_transfers=_whole(read(catalog.KV_TRANSFERS, "request_count")),
        kv_transfer_ms=transferred_ms / num_transferred
        if num_transferred and transferred_ms
        else None,
        v1=_by_label(now, catalog.STATIC_BATCHING, labels),
    )


def _read(now: Snapshot, family: Family, value: str, labels: Mapping[str, str]) -> float | None:
    return now.value(family.name, **family.own_label(value), **labels)


def _by_label(now: Snapshot, family: Family, labels: Mapping[str, str]) -> dict[str, int]:
    figures: dict[str, int] = {}
    for sample in now.find(family.name, **labels):
        kind = sample.labels.get(family.label, "")
        figures[kind] = figures.get(kind, 0) + int(sample.value)
    return figures


def _values(now: Snapshot, family: Family, labels: Mapping[str, str]) -> list[float]:
    return [sample.value for sample in now.find(family.name, **labels)]


def _summarize_gpu(now: Snapshot, uuid: str) -> GpuRow:
    return GpuRow(
        uuid=uuid,
        utilization=_read(now, catalog.GPU_UTILIZATION, uuid, {}),
        memory_used_bytes=_whole(_read(now, catalog.GPU_MEMORY_USED, uuid, {})),
        memory_total_bytes=_whole(_read(now, catalog.GPU_MEMORY_TOTAL, uuid, {})),
        power_w=_read(now, catalog.GPU_POWER, uuid, {}),
        power_limit_w=_read(now, catalog.GPU_POWER_LIMIT, uuid, {}),
    )


def _gpu_uuids(now: Snapshot) -> list[str]:
    label = catalog.GPU_UTILIZATION.label
    return sorted({s.labels[label] for s in now.samples if label in s.labels})


def _mean_ms(
    now: Snapshot,
    before: Snapshot | None,
    durations: Iterable[Family],
    labels: Mapping[str, str],
) -> float | None:
    num_requests = _increase(now, before, catalog.SUCCESSES.name, labels)
    total_us = sum_known(_increase(now, before, family.name, labels) for family in durations)
    return total_us / num_requests / 1000 if total_us is not None and num_requests else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
