"""The metric families that models publish, each declared once: a new one is a new row.

Names and labels that begin with `nv_` are those of the Triton TensorRT-LLM backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Outcome = Literal["stop", "length", "cancelled", "error", "rejected"]
# Who named a family: Triton, its TensorRT-LLM backend, or this project.
Origin = Literal["triton", "tensorrtllm", "tllm"]


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """A metric family: `label`, with one of `values`, comes after the labels of the model or host.

    `bounds` are the upper bounds of a histogram's buckets, rising; the last bucket, which takes the
    rest, has none. A histogram has one value of its label.
    """

    name: str
    type: Literal["counter", "gauge", "histogram"]
    help: str
    label: str = ""
    values: tuple[str, ...] = ()
    unit: str = ""
    bounds: tuple[float, ...] = ()
    origin: Origin = "tllm"

    @property
    def sample_names(self) -> tuple[str, ...]:
        """Its names on a metrics page: a histogram is published as three counters."""
        if self.type != "histogram":
            return (self.name,)
        return f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count"

    def own_label(self, value: str) -> dict[str, str]:
        """Its label with that value; a family without one has none."""
        return {self.label: value} if self.label else {}


_LENGTHS = (10, 50, 100, 500, 1000)
# What clients had of a model.
REQUEST_FAMILIES = (
    REQUESTS := Family(
        "tllm_requests_total",
        "counter",
        "Requests that have ended: by an end token or stop word (stop), at max_tokens (length), "
        "given up by who asked (cancelled), failed while running (error), refused (rejected). "
        "Good: no error; a growing share of rejected means bad requests or a full queue",
        "outcome",
        get_args(Outcome),
    ),
    PROMPT_TOKENS := Family(
        "tllm_prompt_tokens_total",
        "counter",
        "Prompt tokens of the requests that ran",
        unit="tokens",
    ),
    GENERATION_TOKENS := Family(
        "tllm_generation_tokens_total",
        "counter",
        "Tokens generated; its rate is the throughput",
        unit="tokens",
    ),
    TTFT := Family(
        "tllm_time_to_first_token_seconds",
        "histogram",
        "Seconds from the arrival of a request to its first token; queueing shows here first: "
        "bad when it grows while the rate of requests does not",
        unit="s",
        bounds=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    ),
    ITL := Family(
        "tllm_inter_token_latency_seconds",
        "histogram",
        "Seconds between successive tokens of a sequence; grows with the batch, readers notice "
        "it above 0.1",
        unit="s",
        bounds=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
    ),
    DURATION := Family(
        "tllm_request_duration_seconds",
        "histogram",
        "Seconds from the arrival of a request to its end, for those that ended by stop or length",
        unit="s",
        bounds=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
    ),
    INPUT_LENGTH := Family(
        "nv_llm_input_token_len",
        "histogram",
        "Prompt tokens of a request",
        "response_metric_type",
        ("total_input_tokens",),
        unit="tokens",
        bounds=_LENGTHS,
        origin="tensorrtllm",
    ),
    OUTPUT_LENGTH := Family(
        "nv_llm_output_token_len",
        "histogram",
        "Generated tokens of a request",
        "response_metric_type",
        ("total_output_tokens",),
        unit="tokens",
        bounds=_LENGTHS,
        origin="tensorrtllm",
    ),
)
# What the engine does.
ENGINE_FAMILIES = (
    ENGINE_REQUESTS := Family(
        "nv_trt_llm_request_metrics",
        "gauge",
        "TRT LLM request metrics: active requests, of which scheduled in the last step, of which "
        "in context (their prompts being read), and waiting; bad when waiting keeps growing",
        "request_type",
        ("active", "max", "scheduled", "context", "waiting"),
        origin="tensorrtllm",
    ),
    ENGINE_MEMORY := Family(
        "nv_trt_llm_runtime_memory_metrics",
        "gauge",
        "TRT LLM runtime memory metrics, in bytes",
        "memory_type",
        ("cpu", "gpu", "pinned"),
        unit="bytes",
        origin="tensorrtllm",
    ),
    KV_BLOCKS := Family(
        "nv_trt_llm_kv_cache_block_metrics",
        "gauge",
        "TRT LLM KV cache block metrics; near a fraction of 1 requests wait or are preempted",
        "kv_cache_block_type",
        ("max", "free", "used", "tokens_per", "reused", "fraction"),
        origin="tensorrtllm",
    ),
    BATCHER := Family(
        "nv_trt_llm_inflight_batcher_metrics",
        "gauge",
        "TRT LLM inflight_batcher-specific metrics",
        "inflight_batcher_specific_metric",
        ("total_context_tokens", "generation_requests", "micro_batch_id", "paused_requests"),
        origin="tensorrtllm",
    ),
    STEPS := Family(
        "nv_trt_llm_general_metrics",
        "gauge",
        "General TRT LLM metrics: steps so far, and when the last figure changed, in microseconds",
        "general_type",
        ("iteration_counter", "timestamp"),
        origin="tensorrtllm",
    ),
    WORKER_UP := Family(
        "tllm_engine_worker_up",
        "gauge",
        "Whether the engine worker is running (1) or being restarted (0)",
    ),
    PREEMPTIONS := Family(
        "tllm_preemptions_total",
        "counter",
        "Requests that lost their place in the KV cache to others and were computed again; good: "
        "none",
    ),
    PREFIX_QUERIES := Family(
        "tllm_prefix_cache_queries_total",
        "counter",
        "KV cache blocks that prompts needed",
        unit="blocks",
    ),
    PREFIX_HITS := Family(
        "tllm_prefix_cache_hits_total",
        "counter",
        "Of them, those that an earlier prompt had left in the KV cache; the more, the sooner "
        "first tokens come",
        unit="blocks",
    ),
    WORKER_RESTARTS := Family(
        "tllm_engine_worker_restarts_total",
        "counter",
        "How often the engine worker died and was started again; good: never",
    ),
)
