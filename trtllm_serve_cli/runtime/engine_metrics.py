"""The engine's state as Prometheus metrics, with upstream's family and label names.

Families and labels: the Triton TensorRT-LLM backend's custom metrics reporter. Each figure is set
only when it changes, since setting one is a round trip to the server.
"""

from __future__ import annotations

import time
from typing import Any

from .engine import EngineStats

# family -> (help, its own label)
_FAMILIES = {
    "nv_trt_llm_request_metrics": ("TRT LLM request metrics", "request_type"),
    "nv_trt_llm_runtime_memory_metrics": ("TRT LLM runtime memory metrics", "memory_type"),
    "nv_trt_llm_kv_cache_block_metrics": (
        "TRT LLM KV cache block metrics",
        "kv_cache_block_type",
    ),
    "nv_trt_llm_inflight_batcher_metrics": (
        "TRT LLM inflight_batcher-specific metrics",
        "inflight_batcher_specific_metric",
    ),
    "nv_trt_llm_general_metrics": ("General TRT LLM metrics", "general_type"),
}


class EngineMetrics:
    """Publishes `EngineStats` through Triton. `pb_utils` is Triton's module of that name.

    The instances of one model would overwrite each other's figures: `instance` labels them.
    """

    def __init__(
        self, pb_utils: Any, model: str, version: str, max_batch_size: int, instance: str = ""
    ) -> None:
        self._labels = {"model": model, "version": version}
        if instance:
            self._labels["instance"] = instance
        self._max_batch_size = max_batch_size
        self._families = {
            name: pb_utils.MetricFamily(
                name=name, description=text, kind=pb_utils.MetricFamily.GAUGE
            )
            for name, (text, _) in _FAMILIES.items()
        }
        self._families["up"] = pb_utils.MetricFamily(
            name="tllm_engine_worker_up",
            description="Whether the engine worker is running (1) or being restarted (0)",
            kind=pb_utils.MetricFamily.GAUGE,
        )
        self._families["restarts"] = pb_utils.MetricFamily(
            name="tllm_engine_worker_restarts",
            description="How often the engine worker died and was started again",
            kind=pb_utils.MetricFamily.COUNTER,
        )
        self._up = self._families["up"].Metric(labels=self._labels)
        self._restarts = self._families["restarts"].Metric(labels=self._labels)
        self._num_restarts = 0
        self._metrics: dict[tuple[str, str], Any] = {}
        self._last: dict[tuple[str, str], float] = {}

    def publish(self, stats: EngineStats) -> None:
        """Set what differs from the last time."""
        figures = figures_of(stats, self._max_batch_size)
        changed = {key: value for key, value in figures.items() if self._last.get(key) != value}
        if changed:
            changed["nv_trt_llm_general_metrics", "timestamp"] = time.time_ns() // 1000
        for key, value in changed.items():
            self._metric(key).set(value)
        self._last.update(changed)

    def tell_state(self, is_up: bool, num_restarts: int) -> None:
        """Set whether the worker runs, and count its restarts."""
        self._up.set(int(is_up))
        if num_restarts > self._num_restarts:
            self._restarts.increment(num_restarts - self._num_restarts)
            self._num_restarts = num_restarts

    def close(self) -> None:
        """Let go of everything while Triton still listens: the end of a metric is a message to it.

        Nothing may be published afterwards.
        """
        self._metrics.clear()
        self._up = self._restarts = None
        self._families.clear()

    def _metric(self, key: tuple[str, str]) -> Any:
        if key not in self._metrics:
            family, value = key
            labels = {**self._labels, _FAMILIES[family][1]: value}
            self._metrics[key] = self._families[family].Metric(labels=labels)
        return self._metrics[key]


def figures_of(stats: EngineStats, max_batch_size: int) -> dict[tuple[str, str], float]:
    """(family, label value) -> figure."""
    generating = stats.active_requests - stats.context_requests - stats.waiting_requests
    by_family: dict[str, dict[str, float]] = {
        "nv_trt_llm_request_metrics": {
            "active": stats.active_requests,
            "max": max_batch_size,
            "scheduled": stats.scheduled_requests,
            "context": stats.context_requests,
            "waiting": stats.waiting_requests,
        },
        "nv_trt_llm_runtime_memory_metrics": {"cpu": stats.memory_bytes, "gpu": 0, "pinned": 0},
        "nv_trt_llm_kv_cache_block_metrics": {
            "max": stats.kv_blocks_max,
            "free": stats.kv_blocks_max - stats.kv_blocks_used,
            "used": stats.kv_blocks_used,
            "tokens_per": stats.tokens_per_block,
            "fraction": stats.kv_blocks_used / stats.kv_blocks_max if stats.kv_blocks_max else 0.0,
        },
        "nv_trt_llm_inflight_batcher_metrics": {
            "total_context_tokens": stats.context_tokens,
            "generation_requests": max(generating, 0),
            "micro_batch_id": 0,
            "paused_requests": 0,
        },
        "nv_trt_llm_general_metrics": {"iteration_counter": stats.iteration},
    }
    return {
        (family, value): figure
        for family, figures in by_family.items()
        for value, figure in figures.items()
    }
