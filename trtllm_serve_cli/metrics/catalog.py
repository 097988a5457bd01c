"""Every metric family that a server may publish and `tllm` knows: the one place that names them.

Those of this project's models are declared where they are published, in `runtime/telemetry`; here
are those that only Triton, or only its TensorRT-LLM backend, publishes.
"""

from __future__ import annotations

import re

from trtllm_serve_cli.runtime.telemetry.families import ENGINE_FAMILIES, REQUEST_FAMILIES, Family

# Of Triton's TensorRT-LLM backend alone.
BACKEND_FAMILIES = (
    STATIC_BATCHING := Family(
        "nv_trt_llm_v1_metrics",
        "gauge",
        "Static batching, which no Python engine does",
        "v1_specific_metric",
        ("total_context_tokens", "total_generation_tokens", "empty_generation_slots"),
        origin="tensorrtllm",
    ),
)
# Of any Triton. Source: docs/user_guide/metrics.md of triton-inference-server/server.
TRITON_FAMILIES = (
    SUCCESSES := Family(
        "nv_inference_request_success",
        "counter",
        "Requests that succeeded; every request of a decoupled model does",
        origin="triton",
    ),
    FAILURES := Family(
        "nv_inference_request_failure",
        "counter",
        "Requests that failed",
        "reason",
        ("REJECTED", "CANCELED", "BACKEND", "OTHER"),
        origin="triton",
    ),
    INFERENCES := Family(
        "nv_inference_count", "counter", "Inferences, counted by rows of a batch", origin="triton"
    ),
    PENDING := Family(
        "nv_inference_pending_request_count",
        "gauge",
        "Requests that wait in Triton's queue",
        origin="triton",
    ),
    QUEUE_DURATION := Family(
        "nv_inference_queue_duration_us",
        "counter",
        "How long requests waited in Triton's queue",
        unit="us",
        origin="triton",
    ),
    COMPUTE_INPUT_DURATION := Family(
        "nv_inference_compute_input_duration_us",
        "counter",
        "How long the models took for their inputs",
        unit="us",
        origin="triton",
    ),
    COMPUTE_INFER_DURATION := Family(
        "nv_inference_compute_infer_duration_us",
        "counter",
        "How long the models took to run",
        unit="us",
        origin="triton",
    ),
    COMPUTE_OUTPUT_DURATION := Family(
        "nv_inference_compute_output_duration_us",
        "counter",
        "How long the models took for their outputs",
        unit="us",
        origin="triton",
    ),
    CPU_UTILIZATION := Family(
        "nv_cpu_utilization", "gauge", "Use of the CPUs, from 0 to 1", origin="triton"
    ),
    CPU_MEMORY_USED := Family(
        "nv_cpu_memory_used_bytes",
        "gauge",
        "Memory of the machine in use",
        unit="bytes",
        origin="triton",
    ),
    CPU_MEMORY_TOTAL := Family(
        "nv_cpu_memory_total_bytes",
        "gauge",
        "Memory of the machine",
        unit="bytes",
        origin="triton",
    ),
    GPU_UTILIZATION := Family(
        "nv_gpu_utilization", "gauge", "Use of a GPU, from 0 to 1", "gpu_uuid", origin="triton"
    ),
    GPU_MEMORY_USED := Family(
        "nv_gpu_memory_used_bytes",
        "gauge",
        "Memory of a GPU in use",
        "gpu_uuid",
        unit="bytes",
        origin="triton",
    ),
    GPU_MEMORY_TOTAL := Family(
        "nv_gpu_memory_total_bytes",
        "gauge",
        "Memory of a GPU",
        "gpu_uuid",
        unit="bytes",
        origin="triton",
    ),
    GPU_POWER := Family(
        "nv_gpu_power_usage", "gauge", "Power of a GPU", "gpu_uuid", unit="W", origin="triton"
    ),
    GPU_POWER_LIMIT := Family(
        "nv_gpu_power_limit",
        "gauge",
        "What the power of a GPU is limited to",
        "gpu_uuid",
        unit="W",
        origin="triton",
    ),
)
CATALOG = (*REQUEST_FAMILIES, *ENGINE_FAMILIES, *BACKEND_FAMILIES, *TRITON_FAMILIES)

_BY_SAMPLE = {name: family for family in CATALOG for name in family.sample_names}
_NAME = re.compile(r"\b(?:nv|tllm)_\w+")


def find_families(promql: str) -> set[Family]:
    """Return the families that an expression names; raise `KeyError` for one that is unknown."""
    return {_BY_SAMPLE[name] for name in _NAME.findall(promql)}
