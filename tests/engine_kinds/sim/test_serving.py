"""Repositories with a simulated engine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.samples.builds import SIM, SIM_LIMITS
from trtllm_serve_cli.bench.simulate.imported_simulation import read_scheduler_limits
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput, RepositoryError
from trtllm_serve_cli.repository.model.model_config import RepositoryPlan
from trtllm_serve_cli.repository.model.model_repository import open_repository
from trtllm_serve_cli.repository.model.render import write_repository
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository
from trtllm_serve_cli.runtime.engines.sim.timing import SchedulerLimits


def plan(**options: Any) -> RepositoryPlan:
    return plan_repository("mine", SIM, ServingOptions(**options))


def entries(plan: RepositoryPlan) -> dict[str, str]:
    return next(each.parameters for each in plan.models if each.name == "tensorrt_llm")


def test_parameters_have_the_limits_of_the_simulation() -> None:
    assert entries(plan()) == {
        "engine_kind": "sim",
        "gpt_model_path": "/engines/mine",
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


def test_options_and_parameters_override_the_simulation() -> None:
    parameters = entries(
        plan(
            max_batch_size=8,
            max_num_tokens=64,
            max_seq_len=100,
            parameters={"batch_scheduler_policy": "guaranteed_no_evict"},
        )
    )
    assert [parameters[name] for name in ("max_num_seqs", "max_num_tokens", "max_seq_len")] == [
        "8", "64", "100",
    ]  # fmt: skip
    assert parameters["batch_scheduler_policy"] == "guaranteed_no_evict"


def test_rejects_a_length_beyond_the_context() -> None:
    with pytest.raises(BadInput, match="exceeds the context length"):
        plan(max_seq_len=8193)


def limits_of(folder: Path, parameter: str, value: str) -> SchedulerLimits:
    """Return the scheduler limits of a repository with an edited value."""
    write_repository(plan(), folder)
    config = folder / "tensorrt_llm" / "config.pbtxt"
    known = f'"{parameter}" value: {{ string_value: "{entries(plan())[parameter]}"'
    text = config.read_text(encoding="utf-8")
    assert known in text
    config.write_text(text.replace(known, known.rpartition(': "')[0] + f': "{value}"'))
    return read_scheduler_limits(open_repository(folder), SchedulerLimits())


@pytest.mark.parametrize(
    ("parameter", "value", "limits"),
    [
        ("max_num_tokens", "64", {"max_num_tokens": 64}),
        ("max_num_tokens", "", {"max_num_tokens": 8192}),
        ("enable_chunked_context", "True", {}),
        ("enable_chunked_context", "1", {}),
        ("enable_kv_cache_reuse", "FALSE", {"enable_kv_cache_reuse": False}),
        ("batch_scheduler_policy", "MAX_UTILIZATION", {}),
    ],
)
def test_reads_limits_as_the_engine_does(
    tmp_path: Path, parameter: str, value: str, limits: dict[str, Any]
) -> None:
    assert limits_of(tmp_path / "r", parameter, value) == dataclasses.replace(SIM_LIMITS, **limits)


@pytest.mark.parametrize(
    ("parameter", "value", "why"),
    [
        ("max_num_seqs", "many", "invalid literal"),
        ("max_num_tokens", "0", "limits.max_num_tokens must be at least 1, but is 0"),
        ("max_tokens_in_paged_kv_cache", "31", "at least limits.tokens_per_block"),
        ("batch_scheduler_policy", "static_batch", "limits.batch_scheduler_policy must be"),
    ],
)
def test_rejects_invalid_scheduler_limits(
    tmp_path: Path, parameter: str, value: str, why: str
) -> None:
    with pytest.raises(RepositoryError, match="invalid scheduler limits") as raised:
        limits_of(tmp_path / "r", parameter, value)
    assert why in raised.value.why
    assert f"`tllm validate --repo {tmp_path / 'r'}`" in raised.value.next_step


def test_llmapi_layout_has_the_same_arguments_in_model_yaml() -> None:
    (model,) = plan(layout="llmapi").models
    text = model.files["model.yaml"]
    assert 'backend: "sim"' in text
    assert 'batch_scheduler_policy: "max_utilization"' in text
    assert Path("/engines/mine").as_posix() in text
