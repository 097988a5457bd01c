"""Test that metric names, types and labels are stable, because dashboards depend on them."""

from __future__ import annotations

import pytest

from trtllm_serve_cli.runtime.telemetry.families import (
    ENGINE_FAMILIES,
    REQUEST_FAMILIES,
    REQUESTS,
    SERVER_FAMILIES,
    TTFT,
    Family,
)


def test_names_types_and_labels_are_stable() -> None:
    declared = {
        each.name: (each.type, each.label)
        for each in (*REQUEST_FAMILIES, *ENGINE_FAMILIES, *SERVER_FAMILIES)
    }
    assert declared == {
        "tllm_requests_total": ("counter", "outcome"),
        "tllm_prompt_tokens_total": ("counter", ""),
        "tllm_generation_tokens_total": ("counter", ""),
        "tllm_time_to_first_token_seconds": ("histogram", ""),
        "tllm_inter_token_latency_seconds": ("histogram", ""),
        "tllm_request_duration_seconds": ("histogram", ""),
        "nv_llm_input_token_len": ("histogram", "response_metric_type"),
        "nv_llm_output_token_len": ("histogram", "response_metric_type"),
        "nv_trt_llm_request_metrics": ("gauge", "request_type"),
        "nv_trt_llm_runtime_memory_metrics": ("gauge", "memory_type"),
        "nv_trt_llm_kv_cache_block_metrics": ("gauge", "kv_cache_block_type"),
        "nv_trt_llm_inflight_batcher_metrics": ("gauge", "inflight_batcher_specific_metric"),
        "nv_trt_llm_general_metrics": ("gauge", "general_type"),
        "tllm_engine_worker_up": ("gauge", ""),
        "tllm_preemptions_total": ("counter", ""),
        "tllm_prefix_cache_queries_total": ("counter", ""),
        "tllm_prefix_cache_hits_total": ("counter", ""),
        "tllm_engine_worker_restarts_total": ("counter", ""),
        "tllm_server_ready": ("gauge", ""),
        "tllm_server_hangs_total": ("counter", ""),
        "tllm_server_restarts_total": ("counter", ""),
    }


@pytest.mark.parametrize(
    "family", [*REQUEST_FAMILIES, *ENGINE_FAMILIES, *SERVER_FAMILIES], ids=lambda f: f.name
)
def test_declaration_is_complete(family: Family) -> None:
    assert family.help
    assert bool(family.label) == bool(family.values)
    assert bool(family.bounds) == (family.type == "histogram")
    assert list(family.bounds) == sorted(family.bounds)
    assert (family.origin == "tllm") == family.name.startswith("tllm_")


def test_histogram_is_published_as_three_counters() -> None:
    assert REQUESTS.sample_names == ("tllm_requests_total",)
    assert TTFT.sample_names == (
        "tllm_time_to_first_token_seconds_bucket",
        "tllm_time_to_first_token_seconds_sum",
        "tllm_time_to_first_token_seconds_count",
    )
