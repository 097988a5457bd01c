"""Test that the engine's state is published under upstream's names, and only on changes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from trtllm_serve_cli.runtime.engine import EngineStats
from trtllm_serve_cli.runtime.telemetry.engine_metrics import EngineMetrics, gauge_values
from trtllm_serve_cli.runtime.telemetry.families import ENGINE_FAMILIES, KV_BLOCKS

STATS = EngineStats(
    active_requests=7,
    scheduled_requests=5,
    context_requests=2,
    waiting_requests=1,
    kv_blocks_max=80,
    kv_blocks_used=20,
    tokens_per_block=32,
    iteration=9,
    context_tokens=300,
    memory_bytes=1000,
    gpu_memory_bytes=2000,
    pinned_memory_bytes=30,
    micro_batch_id=1,
    paused_requests=3,
    preemptions=4,
    kv_blocks_reused=6,
    kv_blocks_missed=10,
)
_REQUESTS = "nv_trt_llm_request_metrics"
_GENERAL = "nv_trt_llm_general_metrics"


class Families:
    """A fake of Triton's `MetricFamily` that records (family, own label, value)."""

    GAUGE = "gauge"
    COUNTER = "counter"

    def __init__(self) -> None:
        self.labels: list[dict[str, str]] = []
        self.published: list[tuple[str, str, float]] = []

    def __call__(self, *, name: str, description: str, kind: str) -> Any:
        return SimpleNamespace(Metric=lambda labels: self._metric(name, labels))

    def take_published(self) -> list[tuple[str, str, float]]:
        published, self.published = self.published, []
        return published

    def _metric(self, name: str, labels: dict[str, str]) -> Any:
        self.labels.append(labels)
        own = next((value for key, value in labels.items() if key not in ("model", "version")), "")

        def record(value: float) -> None:
            self.published.append((name, own, value))

        return SimpleNamespace(set=record, increment=record)


def _metrics(families: Families) -> EngineMetrics:
    return EngineMetrics(SimpleNamespace(MetricFamily=families), "tensorrt_llm", "1", 8)


def named_values(stats: EngineStats) -> dict[tuple[str, str], float]:
    values = gauge_values(stats, max_batch_size=8)
    return {(family.name, value): figure for (family, value), figure in values.items()}


def test_publishes_every_declared_value() -> None:
    families = Families()
    _metrics(families).publish(STATS)
    assert {(name, own) for name, own, _ in families.published if own} == {
        (family.name, value) for family in ENGINE_FAMILIES for value in family.values
    }


def test_gauges_have_upstreams_names() -> None:
    assert named_values(STATS) == {
        (_REQUESTS, "active"): 7,
        (_REQUESTS, "max"): 8,
        (_REQUESTS, "scheduled"): 5,
        (_REQUESTS, "context"): 2,
        (_REQUESTS, "waiting"): 1,
        ("nv_trt_llm_runtime_memory_metrics", "cpu"): 1000,
        ("nv_trt_llm_runtime_memory_metrics", "gpu"): 2000,
        ("nv_trt_llm_runtime_memory_metrics", "pinned"): 30,
        ("nv_trt_llm_kv_cache_block_metrics", "max"): 80,
        ("nv_trt_llm_kv_cache_block_metrics", "free"): 60,
        ("nv_trt_llm_kv_cache_block_metrics", "used"): 20,
        ("nv_trt_llm_kv_cache_block_metrics", "tokens_per"): 32,
        ("nv_trt_llm_kv_cache_block_metrics", "reused"): 6,
        ("nv_trt_llm_kv_cache_block_metrics", "fraction"): 0.25,
        ("nv_trt_llm_inflight_batcher_metrics", "total_context_tokens"): 300,
        ("nv_trt_llm_inflight_batcher_metrics", "generation_requests"): 4,
        ("nv_trt_llm_inflight_batcher_metrics", "micro_batch_id"): 1,
        ("nv_trt_llm_inflight_batcher_metrics", "paused_requests"): 3,
        (_GENERAL, "iteration_counter"): 9,
    }


def test_engine_without_a_cache_uses_no_fraction() -> None:
    values = gauge_values(EngineStats(), max_batch_size=8)
    assert values[KV_BLOCKS, "fraction"] == 0.0


def test_first_publish_sets_all_metrics() -> None:
    families = Families()
    _metrics(families).publish(STATS)
    published = {(family, own): value for family, own, value in families.published}
    assert published.pop((_GENERAL, "timestamp")) > 0
    assert published == named_values(STATS) | {
        ("tllm_preemptions_total", ""): 4,
        ("tllm_prefix_cache_hits_total", ""): 6,
        ("tllm_prefix_cache_queries_total", ""): 16,
    }


def test_counters_survive_a_worker_restart() -> None:
    families = Families()
    metrics = _metrics(families)
    for preemptions in (4, 6, 1, 1):
        metrics.publish(EngineStats(preemptions=preemptions))
    published = [
        value for family, _, value in families.published if family == "tllm_preemptions_total"
    ]
    assert published == [4, 2, 1]


def test_gauges_have_upstreams_labels() -> None:
    families = Families()
    _metrics(families).publish(STATS)
    expected = {"model": "tensorrt_llm", "version": "1", "request_type": "active"}
    assert expected in families.labels


def test_later_publishes_set_only_changes_and_the_timestamp() -> None:
    families = Families()
    metrics = _metrics(families)
    metrics.publish(STATS)
    families.take_published()
    metrics.publish(replace(STATS, waiting_requests=0, iteration=10))
    assert [(family, own) for family, own, _ in families.published] == [
        (_REQUESTS, "waiting"),
        ("nv_trt_llm_inflight_batcher_metrics", "generation_requests"),
        (_GENERAL, "iteration_counter"),
        (_GENERAL, "timestamp"),
    ]


def test_publishes_nothing_without_changes() -> None:
    families = Families()
    metrics = _metrics(families)
    metrics.publish(STATS)
    families.take_published()
    metrics.publish(replace(STATS))
    assert families.published == []


def test_publishes_the_workers_state_and_counts_restarts_once() -> None:
    families = Families()
    metrics = _metrics(families)
    for is_up, num_restarts in ((True, 0), (False, 0), (True, 2), (False, 2)):
        metrics.publish_state(is_up, num_restarts)
    up, restarts = "tllm_engine_worker_up", "tllm_engine_worker_restarts_total"
    assert families.published == [
        (up, "", 1),
        (up, "", 0),
        (up, "", 1),
        (restarts, "", 2),
        (up, "", 0),
    ]


def test_all_metrics_of_one_of_several_instances_have_its_name() -> None:
    families = Families()
    triton = SimpleNamespace(MetricFamily=families)
    EngineMetrics(triton, "tensorrt_llm", "1", 8, "tensorrt_llm_0_1").publish(STATS)
    assert {labels["instance"] for labels in families.labels} == {"tensorrt_llm_0_1"}
