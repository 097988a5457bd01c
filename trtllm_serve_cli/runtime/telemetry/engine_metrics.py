"""The engine's state as Prometheus metrics, with upstream's family and label names.

Families and labels: the Triton TensorRT-LLM backend's custom metrics reporter. Each figure is set
only when it changes, since setting one is a round trip to the server.
"""

from __future__ import annotations

import time
from typing import Any

from ..engine import EngineStats

# family -> (help, its own label)
_FAMILIES = {
    "nv_trt_llm_request_metrics": (
        "TRT LLM request metrics: active requests, of which scheduled in the last step, of which "
        "in context (their prompts being read), and waiting; bad when waiting keeps growing",
        "request_type",
    ),
    "nv_trt_llm_runtime_memory_metrics": (
        "TRT LLM runtime memory metrics, in bytes",
        "memory_type",
    ),
    "nv_trt_llm_kv_cache_block_metrics": (
        "TRT LLM KV cache block metrics; near a fraction of 1 requests wait or are preempted",
        "kv_cache_block_type",
    ),
    "nv_trt_llm_inflight_batcher_metrics": (
        "TRT LLM inflight_batcher-specific metrics",
        "inflight_batcher_specific_metric",
    ),
    "nv_trt_llm_general_metrics": (
        "General TRT LLM metrics: steps so far, and when the last figure changed, in microseconds",
        "general_type",
    ),
}
_COUNTERS = {
    "tllm_preemptions_total": "Requests that lost their place in the KV cache to others and were "
    "computed again; good: none",
    "tllm_prefix_cache_queries_total": "KV cache blocks that prompts needed",
    "tllm_prefix_cache_hits_total": "Of them, those that an earlier prompt had left in the KV "
    "cache; the more, the sooner first tokens come",
    "tllm_engine_worker_restarts_total": "How often the engine worker died and was started again; "
    "good: never",
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
        counters = {
            name: pb_utils.MetricFamily(
                name=name, description=text, kind=pb_utils.MetricFamily.COUNTER
            )
            for name, text in _COUNTERS.items()
        }
        self._families |= counters
        self._up = self._families["up"].Metric(labels=self._labels)
        self._counters = {
            name: family.Metric(labels=self._labels) for name, family in counters.items()
        }
        self._counted = dict.fromkeys(counters, 0)
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
        self._count("tllm_preemptions_total", stats.preemptions)
        self._count("tllm_prefix_cache_hits_total", stats.kv_blocks_reused)
        self._count(
            "tllm_prefix_cache_queries_total", stats.kv_blocks_reused + stats.kv_blocks_missed
        )

    def tell_state(self, is_up: bool, num_restarts: int) -> None:
        """Set whether the worker runs, and count its restarts."""
        self._up.set(int(is_up))
        self._count("tllm_engine_worker_restarts_total", num_restarts)

    def close(self) -> None:
        """Let go of everything while Triton still listens: the end of a metric is a message to it.

        Nothing may be published afterwards.
        """
        self._metrics.clear()
        self._counters.clear()
        self._up = None
        self._families.clear()

    def _count(self, name: str, count: int) -> None:
        """Add what has come; a worker that was started again counts from zero."""
        known = self._counted[name]
        if grown := count - known if count >= known else count:
            self._counters[name].increment(grown)
        self._counted[name] = count

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
        "nv_trt_llm_runtime_memory_metrics": {
            "cpu": stats.memory_bytes,
            "gpu": stats.gpu_memory_bytes,
            "pinned": stats.pinned_memory_bytes,
        },
        "nv_trt_llm_kv_cache_block_metrics": {
            "max": stats.kv_blocks_max,
            "free": stats.kv_blocks_max - stats.kv_blocks_used,
            "used": stats.kv_blocks_used,
            "tokens_per": stats.tokens_per_block,
            "reused": stats.kv_blocks_reused,
            "fraction": stats.kv_blocks_used / stats.kv_blocks_max if stats.kv_blocks_max else 0.0,
        },
        "nv_trt_llm_inflight_batcher_metrics": {
            "total_context_tokens": stats.context_tokens,
            "generation_requests": max(generating, 0),
            "micro_batch_id": stats.micro_batch_id,
            "paused_requests": stats.paused_requests,
        },
        "nv_trt_llm_general_metrics": {"iteration_counter": stats.iteration},
    }
    return {
        (family, value): figure
        for family, figures in by_family.items()
        for value, figure in figures.items()
    }
