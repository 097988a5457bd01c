"""Repositories whose engine is simulated."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.build.samples import ENGINE
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository import ServingOptions, plan_repository
from trtllm_serve_cli.repository.config import RepositoryPlan
from trtllm_serve_cli.runtime.sim_timing import SchedulerLimits, Simulation, StepTiming

LIMITS = SchedulerLimits(
    max_batch_size=32, max_num_tokens=512, max_tokens_in_paged_kv_cache=4096,
    batch_scheduler_policy="max_utilization", enable_chunked_context=True,
)  # fmt: skip
SIM = dataclasses.replace(ENGINE, kind="sim", simulation=Simulation(StepTiming(0.02), LIMITS))


def plan(**options: Any) -> RepositoryPlan:
    return plan_repository("mine", SIM, ServingOptions(**options))


def entries(plan: RepositoryPlan) -> dict[str, str]:
    return next(each.parameters for each in plan.models if each.name == "tensorrt_llm")


def test_parameters_are_those_of_the_simulation() -> None:
    assert entries(plan()) == {
        "engine_kind": "sim",
        "gpt_model_path": "/engines/mine",
        "gpt_model_type": "inflight_fused_batching",
        "vocab_size": "49152",
        "max_num_seqs": "32",
        "max_seq_len": "8192",
        "max_num_tokens": "512",
        "max_tokens_in_paged_kv_cache": "4096",
        "batch_scheduler_policy": "max_utilization",
        "enable_chunked_context": "true",
        "enable_kv_cache_reuse": "true",
        "exclude_input_in_output": "false",
        "cancellation_check_period_ms": "100",
        "instances_share_engine": "false",
        "engine_python": "",
    }


def test_what_is_asked_for_wins() -> None:
    asked = entries(
        plan(
            max_batch_size=8,
            max_num_tokens=64,
            max_seq_len=100,
            parameters={"batch_scheduler_policy": "guaranteed_no_evict"},
        )
    )
    assert [asked[name] for name in ("max_num_seqs", "max_num_tokens", "max_seq_len")] == [
        "8", "64", "100",
    ]  # fmt: skip
    assert asked["batch_scheduler_policy"] == "guaranteed_no_evict"


def test_a_context_beyond_the_models_is_refused() -> None:
    with pytest.raises(BadInput, match="beyond the context"):
        plan(max_seq_len=8193)


def test_the_llmapi_layout_has_the_same_in_its_file() -> None:
    (model,) = plan(layout="llmapi").models
    text = model.files["model.yaml"]
    assert 'backend: "sim"' in text
    assert 'batch_scheduler_policy: "max_utilization"' in text
    assert Path("/engines/mine").as_posix() in text
