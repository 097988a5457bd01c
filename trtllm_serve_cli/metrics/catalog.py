"""List the metric families that tllm can read.

`runtime/telemetry` declares the families that this project's models publish. This module adds the
families that only Triton or its TensorRT-LLM backend publishes.
"""

from __future__ import annotations

import re

from trtllm_serve_cli.runtime.telemetry.families import (
    ENGINE_FAMILIES,
    REQUEST_FAMILIES,
    SERVER_FAMILIES,
    Family,
)

# Only Triton's TensorRT-LLM backend publishes these families.
BACKEND_FAMILIES = (
    STATIC_BATCHING := Family(
        "nv_trt_llm_v1_metrics",
        "gauge",
        "Values for static batching, which Python engines do not use",
        "v1_specific_metric",
        ("total_context_tokens", "total_generation_tokens", "empty_generation_slots"),
        origin="tensorrtllm",
    ),
    KV_TRANSFERS := Family(
        "nv_trt_llm_disaggregated_serving_metrics",
        "counter",
        "KV cache transfers from context servers to generation servers: total time in "
        "milliseconds and number of requests. Available since TensorRT-LLM 0.15",
        "disaggregated_serving_type",
        ("kv_cache_transfer_ms", "request_count"),
        origin="tensorrtllm",
    ),
)
# Triton publishes these families, which are documented in docs/user_guide/metrics.md of
# triton-inference-server/server.
TRITON_FAMILIES = (
    SUCCESSES := Family(
        "nv_inference_request_success",
        "counter",
        "Successful requests; all requests to decoupled models count as successful",
        origin="triton",
    ),
    FAILURES := Family(
        "nv_inference_request_failure",
        "counter",
        "Failed requests",
        "reason",
        ("REJECTED", "CANCELED", "BACKEND", "OTHER"),
        origin="triton",
    ),
    INFERENCES := Family(
        "nv_inference_count",
        "counter",
        "Inferences; each row of a batch counts as one inference",
        origin="triton",
    ),
    PENDING := Family(
        "nv_inference_pending_request_count",
        "gauge",
        "Requests that are waiting in Triton's queue",
        origin="triton",
    ),
    QUEUE_DURATION := Family(
        "nv_inference_queue_duration_us",
        "counter",
        "Time that requests waited in Triton's queue",
        unit="us",
        origin="triton",
    ),
    COMPUTE_INPUT_DURATION := Family(
        "nv_inference_compute_input_duration_us",
        "counter",
        "Time that models spent processing inputs",
        unit="us",
        origin="triton",
    ),
    COMPUTE_INFER_DURATION := Family(
        "nv_inference_compute_infer_duration_us",
        "counter",
        "Time that models spent running inference",
        unit="us",
        origin="triton",
    ),
    COMPUTE_OUTPUT_DURATION := Family(
        "nv_inference_compute_output_duration_us",
        "counter",
        "Time that models spent processing outputs",
        unit="us",
        origin="triton",
    ),
    CPU_UTILIZATION := Family(
        "nv_cpu_utilization", "gauge", "CPU utilization, from 0 to 1", origin="triton"
    ),
    CPU_MEMORY_USED := Family(
        "nv_cpu_memory_used_bytes",
        "gauge",
        "Memory in use on the machine",
        unit="bytes",
        origin="triton",
    ),
    CPU_MEMORY_TOTAL := Family(
        "nv_cpu_memory_total_bytes",
        "gauge",
        "Total memory on the machine",
        unit="bytes",
        origin="triton",
    ),
    GPU_UTILIZATION := Family(
        "nv_gpu_utilization", "gauge", "GPU utilization, from 0 to 1", "gpu_uuid", origin="triton"
    ),
    GPU_MEMORY_USED := Family(
        "nv_gpu_memory_used_bytes",
        "gauge",
        "GPU memory in use",
        "gpu_uuid",
        unit="bytes",
        origin="triton",
    ),
    GPU_MEMORY_TOTAL := Family(
        "nv_gpu_memory_total_bytes",
        "gauge",
        "Total GPU memory",
        "gpu_uuid",
        unit="bytes",
        origin="triton",
    ),
    GPU_POWER := Family(
        "nv_gpu_power_usage", "gauge", "GPU power draw", "gpu_uuid", unit="W", origin="triton"
    ),
    GPU_POWER_LIMIT := Family(
        "nv_gpu_power_limit",
        "gauge",
        "GPU power limit",
        "gpu_uuid",
        unit="W",
        origin="triton",
    ),
)
CATALOG = (
    *REQUEST_FAMILIES,
    *ENGINE_FAMILIES,
    *SERVER_FAMILIES,
    *BACKEND_FAMILIES,
    *TRITON_FAMILIES,
)

_BY_SAMPLE = {name: family for family in CATALOG for name in family.sample_names}
_NAME = re.compile(r"\b(?:nv|tllm)_\w+")


def find_families(promql: str) -> set[Family]:
    """Return the families in a PromQL expression. Raise `KeyError` if a family is unknown."""
    return {_BY_SAMPLE[name] for name in _NAME.findall(promql)}
