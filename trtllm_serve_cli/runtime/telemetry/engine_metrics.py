"""Publish the engine's state as Prometheus metrics.

Families with the prefix `nv_` use the names and labels of the custom metrics reporter in the Triton
TensorRT-LLM backend. The metrics for `EngineStats` are updated only when their values change,
because each update requires a round trip to the server.
"""

from __future__ import annotations

import time
from typing import Any

from ..engine import EngineStats
from .families import (
    BATCHER,
    ENGINE_FAMILIES,
    ENGINE_MEMORY,
    ENGINE_REQUESTS,
    KV_BLOCKS,
    PREEMPTIONS,
    PREFIX_HITS,
    PREFIX_QUERIES,
    STEPS,
    WORKER_RESTARTS,
    WORKER_UP,
    Family,
)


class EngineMetrics:
    """The Triton metrics for `EngineStats` and the engine worker's state.

    `pb_utils` is the `triton_python_backend_utils` module. A non-empty `instance` becomes a
    label. The label prevents instances of the same model from overwriting each other's values.
    """

    def __init__(
        self, pb_utils: Any, model: str, version: str, max_batch_size: int, instance: str = ""
    ) -> None:
        self._labels = {"model": model, "version": version}
        if instance:
            self._labels["instance"] = instance
        self._max_batch_size = max_batch_size
        types = {"gauge": pb_utils.MetricFamily.GAUGE, "counter": pb_utils.MetricFamily.COUNTER}
        self._families = {
            family: pb_utils.MetricFamily(
                name=family.name, description=family.help, kind=types[family.type]
            )
            for family in ENGINE_FAMILIES
        }
        self._up = self._families[WORKER_UP].Metric(labels=self._labels)
        self._counters = {
            family: self._families[family].Metric(labels=self._labels)
            for family in ENGINE_FAMILIES
            if family.type == "counter"
        }
        self._counted = dict.fromkeys(self._counters, 0)
        self._metrics: dict[tuple[Family, str], Any] = {}
        self._last: dict[tuple[Family, str], float] = {}

    def publish(self, stats: EngineStats) -> None:
        """Update the metrics whose values have changed since the last call.

        If a gauge has changed, also set the timestamp of the last change.
        """
        values = gauge_values(stats, self._max_batch_size)
        changed = {key: value for key, value in values.items() if self._last.get(key) != value}
        if changed:
            changed[STEPS, "timestamp"] = time.time_ns() // 1000
        for key, value in changed.items():
            self._metric(key).set(value)
        self._last.update(changed)
        self._count(PREEMPTIONS, stats.preemptions)
        self._count(PREFIX_HITS, stats.kv_blocks_reused)
        self._count(PREFIX_QUERIES, stats.kv_blocks_reused + stats.kv_blocks_missed)

    def publish_state(self, is_up: bool, num_restarts: int) -> None:
        """Publish whether the worker is running and how many times it has restarted."""
        self._up.set(int(is_up))
        self._count(WORKER_RESTARTS, num_restarts)

    def close(self) -> None:
        """Release all metrics. Do not call `publish` or `publish_state` afterwards.

        Call this method while Triton is still running, because each release sends a message to the
        server.
        """
        self._metrics.clear()
        self._counters.clear()
        self._up = None
        self._families.clear()

    def _count(self, family: Family, count: int) -> None:
        """Increment a counter by the increase in `count` since the last call.

        If `count` has decreased, the worker has restarted and counts from 0 again, so increment by
        `count`.
        """
        known = self._counted[family]
        if grown := count - known if count >= known else count:
            self._counters[family].increment(grown)
        self._counted[family] = count

    def _metric(self, key: tuple[Family, str]) -> Any:
        if key not in self._metrics:
            family, value = key
            labels = {**self._labels, **family.own_label(value)}
            self._metrics[key] = self._families[family].Metric(labels=labels)
        return self._metrics[key]


def gauge_values(stats: EngineStats, max_batch_size: int) -> dict[tuple[Family, str], float]:
    """Return the gauge values for `stats`.

    The keys are `(family, label value)` pairs.
    """
    generating = stats.active_requests - stats.context_requests - stats.waiting_requests
    by_family: dict[Family, dict[str, float]] = {
        ENGINE_REQUESTS: {
            "active": stats.active_requests,
            "max": max_batch_size,
            "scheduled": stats.scheduled_requests,
            "context": stats.context_requests,
            "waiting": stats.waiting_requests,
        },
        ENGINE_MEMORY: {
            "cpu": stats.memory_bytes,
            "gpu": stats.gpu_memory_bytes,
            "pinned": stats.pinned_memory_bytes,
        },
        KV_BLOCKS: {
            "max": stats.kv_blocks_max,
            "free": stats.kv_blocks_max - stats.kv_blocks_used,
            "used": stats.kv_blocks_used,
            "tokens_per": stats.tokens_per_block,
            "reused": stats.kv_blocks_reused,
            "fraction": stats.kv_blocks_used / stats.kv_blocks_max if stats.kv_blocks_max else 0.0,
        },
        BATCHER: {
            "total_context_tokens": stats.context_tokens,
            "generation_requests": max(generating, 0),
            "micro_batch_id": stats.micro_batch_id,
            "paused_requests": stats.paused_requests,
        },
        STEPS: {"iteration_counter": stats.iteration},
    }
    return {
        (family, label): value
        for family, values in by_family.items()
        for label, value in values.items()
    }
