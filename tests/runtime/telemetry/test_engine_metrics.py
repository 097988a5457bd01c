"""The engine's state under upstream's names, told only where it changed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from trtllm_serve_cli.runtime.engine import EngineStats
from trtllm_serve_cli.runtime.telemetry.engine_metrics import EngineMetrics, figures_of
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
    """Triton's `MetricFamily`, writing down what is set: (family, own label, value)."""

    GAUGE = "gauge"
    COUNTER = "counter"

    def __init__(self) -> None:
        self.labels: list[dict[str, str]] = []
        self.told: list[tuple[str, str, float]] = []

    def __call__(self, *, name: str, description: str, kind: str) -> Any:
        return SimpleNamespace(Metric=lambda labels: self._metric(name, labels))

    def take_told(self) -> list[tuple[str, str, float]]:
        told, self.told = self.told, []
        return told

    def _metric(self, name: str, labels: dict[str, str]) -> Any:
        self.labels.append(labels)
        own = next((value for key, value in labels.items() if key not in ("model", "version")), "")

        def tell(value: float) -> None:
            self.told.append((name, own, value))

        return SimpleNamespace(set=tell, increment=tell)


def _metrics(families: Families) -> EngineMetrics:
    return EngineMetrics(SimpleNamespace(MetricFamily=families), "tensorrt_llm", "1", 8)


def named_figures(stats: EngineStats) -> dict[tuple[str, str], float]:
    figures = figures_of(stats, max_batch_size=8)
    return {(family.name, value): figure for (family, value), figure in figures.items()}


def test_every_declared_value_is_published() -> None:
    families = Families()
    _metrics(families).publish(STATS)
    assert {(name, own) for name, own, _ in families.told if own} == {
        (family.name, value) for family in ENGINE_FAMILIES for value in family.values
    }


def test_figures_have_upstreams_names() -> None:
    assert named_figures(STATS) == {
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


def test_an_engine_without_a_cache_uses_none_of_it() -> None:
    figures = figures_of(EngineStats(), max_batch_size=8)
    assert figures[KV_BLOCKS, "fraction"] == 0.0


def test_the_first_figures_are_all_told() -> None:
    families = Families()
    _metrics(families).publish(STATS)
    told = {(family, own): value for family, own, value in families.told}
    assert told.pop((_GENERAL, "timestamp")) > 0
    assert told == named_figures(STATS) | {
        ("tllm_preemptions_total", ""): 4,
        ("tllm_prefix_cache_hits_total", ""): 6,
        ("tllm_prefix_cache_queries_total", ""): 16,
    }


def test_a_worker_that_counts_from_zero_again_takes_nothing_back() -> None:
    families = Families()
    metrics = _metrics(families)
    for preemptions in (4, 6, 1, 1):
        metrics.publish(EngineStats(preemptions=preemptions))
    told = [value for family, _, value in families.told if family == "tllm_preemptions_total"]
    assert told == [4, 2, 1]


def test_figures_are_labelled_as_upstream_does() -> None:
    families = Families()
    _metrics(families).publish(STATS)
    expected = {"model": "tensorrt_llm", "version": "1", "request_type": "active"}
    assert expected in families.labels


def test_later_only_what_changed_is_told_with_the_time() -> None:
    families = Families()
    metrics = _metrics(families)
    metrics.publish(STATS)
    families.take_told()
    metrics.publish(replace(STATS, waiting_requests=0, iteration=10))
    assert [(family, own) for family, own, _ in families.told] == [
        (_REQUESTS, "waiting"),
        ("nv_trt_llm_inflight_batcher_metrics", "generation_requests"),
        (_GENERAL, "iteration_counter"),
        (_GENERAL, "timestamp"),
    ]


def test_nothing_is_told_when_nothing_changed() -> None:
    families = Families()
    metrics = _metrics(families)
    metrics.publish(STATS)
    families.take_told()
    metrics.publish(replace(STATS))
    assert families.told == []


def test_the_workers_state_is_told_and_its_restarts_counted_once() -> None:
    families = Families()
    metrics = _metrics(families)
    for is_up, num_restarts in ((True, 0), (False, 0), (True, 2), (False, 2)):
        metrics.tell_state(is_up, num_restarts)
    up, restarts = "tllm_engine_worker_up", "tllm_engine_worker_restarts_total"
    assert families.told == [(up, "", 1), (up, "", 0), (up, "", 1), (restarts, "", 2), (up, "", 0)]


def test_one_of_several_instances_has_its_name_on_all_figures() -> None:
    families = Families()
    triton = SimpleNamespace(MetricFamily=families)
    EngineMetrics(triton, "tensorrt_llm", "1", 8, "tensorrt_llm_0_1").publish(STATS)
    assert {labels["instance"] for labels in families.labels} == {"tensorrt_llm_0_1"}
