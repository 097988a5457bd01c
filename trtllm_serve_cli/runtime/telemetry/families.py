"""Declare the metric families that models publish.

Families with the prefix `nv_` use the names and labels of the Triton TensorRT-LLM backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Outcome = Literal["stop", "length", "cancelled", "error", "rejected"]
# The project that defines a family: Triton, Triton's TensorRT-LLM backend, or this project.
Origin = Literal["triton", "tensorrtllm", "tllm"]


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """A metric family.

    - `label`: an additional label of the family's metrics, or empty.
    - `values`: the possible values of `label`. A histogram with a label has exactly one
      value.
    - `unit`: the unit of the metrics, or empty.
    - `bounds`: the upper bounds of a histogram's buckets in increasing order. The last bucket has
      no upper bound and is not included.
    - `origin`: the project that defines the family.
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
        """The names of the family's metrics on a metrics page.

        A histogram is published as three counters, so it has three names.
        """
        if self.type != "histogram":
            return (self.name,)
        return f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count"

    def own_label(self, value: str) -> dict[str, str]:
        """Return `{label: value}`, or an empty dictionary if the family has no label."""
        return {self.label: value} if self.label else {}


_LENGTHS = (10, 50, 100, 500, 1000)
# Metric families for request counts, lengths and latencies.
REQUEST_FAMILIES = (
    REQUESTS := Family(
        "tllm_requests_total",
        "counter",
        "Requests that have ended, by outcome: end token or stop word (stop), max_tokens reached "
        "(length), cancelled by the client (cancelled), failed (error), not accepted (rejected). "
        "Errors should be zero; a growing share of rejected requests means invalid "
        "requests or a full queue",
        "outcome",
        get_args(Outcome),
    ),
    PROMPT_TOKENS := Family(
        "tllm_prompt_tokens_total",
        "counter",
        "Prompt tokens of all requests that were not rejected",
        unit="tokens",
    ),
    GENERATION_TOKENS := Family(
        "tllm_generation_tokens_total",
        "counter",
        "Generated tokens; the rate is the output throughput",
        unit="tokens",
    ),
    TTFT := Family(
        "tllm_time_to_first_token_seconds",
        "histogram",
        "Time to first token (TTFT): seconds from the arrival of a request to its first token. "
        "Queueing increases the TTFT: investigate if it grows at a constant request rate",
        unit="s",
        bounds=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    ),
    ITL := Family(
        "tllm_inter_token_latency_seconds",
        "histogram",
        "Inter-token latency (ITL): seconds between successive responses with tokens of a "
        "sequence; a busy server or a draft model adds several tokens to a response. It grows with "
        "the batch size; values above 0.1 s are noticeable to readers",
        unit="s",
        bounds=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
    ),
    DURATION := Family(
        "tllm_request_duration_seconds",
        "histogram",
        "Seconds from the arrival of a request to its end, for the outcomes stop and length",
        unit="s",
        bounds=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
    ),
    INPUT_LENGTH := Family(
        "nv_llm_input_token_len",
        "histogram",
        "Prompt tokens per request",
        "response_metric_type",
        ("total_input_tokens",),
        unit="tokens",
        bounds=_LENGTHS,
        origin="tensorrtllm",
    ),
    OUTPUT_LENGTH := Family(
        "nv_llm_output_token_len",
        "histogram",
        "Generated tokens per request",
        "response_metric_type",
        ("total_output_tokens",),
        unit="tokens",
        bounds=_LENGTHS,
        origin="tensorrtllm",
    ),
)
# Metric families for the state of the engine and its worker.
ENGINE_FAMILIES = (
    ENGINE_REQUESTS := Family(
        "nv_trt_llm_request_metrics",
        "gauge",
        "TRT LLM request metrics: requests that are active, were scheduled in the last step, are "
        "in the context phase (prompt processing), or are waiting; max is the maximum batch size. "
        "Investigate if waiting keeps growing",
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
        "TRT LLM KV cache block metrics; requests wait or are preempted as the fraction nears 1",
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
        "General TRT LLM metrics: number of engine steps, and Unix time of the last change in "
        "microseconds",
        "general_type",
        ("iteration_counter", "timestamp"),
        origin="tensorrtllm",
    ),
    WORKER_UP := Family(
        "tllm_engine_worker_up",
        "gauge",
        "1 if the engine worker is running, 0 while it is being restarted",
    ),
    PREEMPTIONS := Family(
        "tllm_preemptions_total",
        "counter",
        "Preemptions. A preempted request loses its KV cache blocks to other requests and is "
        "recomputed. Should be zero",
    ),
    PREFIX_QUERIES := Family(
        "tllm_prefix_cache_queries_total",
        "counter",
        "Prompt blocks that were looked up in the KV cache",
        unit="blocks",
    ),
    PREFIX_HITS := Family(
        "tllm_prefix_cache_hits_total",
        "counter",
        "Prompt blocks that were found in the KV cache; more hits mean a shorter time to first "
        "token",
        unit="blocks",
    ),
    WORKER_RESTARTS := Family(
        "tllm_engine_worker_restarts_total",
        "counter",
        "Restarts of the engine worker after it died. Should be zero",
    ),
)
# Metric families for the recorded server state (see server_status.py).
SERVER_FAMILIES = (
    SERVER_READY := Family(
        "tllm_server_ready",
        "gauge",
        "1 if the server is ready, 0 if it is starting, restarting, unresponsive or stopping",
    ),
    SERVER_HANGS := Family(
        "tllm_server_hangs_total",
        "counter",
        "Server processes that were killed because they did not respond. Should be zero",
    ),
    SERVER_RESTARTS := Family(
        "tllm_server_restarts_total",
        "counter",
        "Server restarts by the supervisor. Should be zero",
    ),
)
