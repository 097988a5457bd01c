"""The planned contents of a repository, and rejected options."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.samples.builds import ENGINE
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.contract import load_contracts
from trtllm_serve_cli.repository.model.model_config import ModelConfig, QueuePolicy
from trtllm_serve_cli.repository.planning.repository_plan import (
    RESERVED_NAMES,
    plan_repository,
)


def plan(**options) -> dict[str, ModelConfig]:
    models = plan_repository("mine", ENGINE, ServingOptions(**options)).models
    return {model.name: model for model in models}


def test_repository_has_upstream_models_and_a_named_model() -> None:
    assert list(plan()) == [
        "preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls", "mine",
    ]  # fmt: skip


def test_plan_of_the_engine_model() -> None:
    contract = load_contracts()["tensorrt_llm"]
    options = {"max_batch_size": 8, "max_seq_len": 1024, "max_num_tokens": 99, "max_beam_width": 2}
    assert plan(**options)["tensorrt_llm"] == ModelConfig(
        name="tensorrt_llm",
        title="the engine of mine (openvino)",
        module="tensorrt_llm",
        inputs=contract.inputs,
        outputs=contract.outputs,
        parameters={
            "engine_kind": "openvino",
            "gpt_model_path": "/engines/mine",
            "max_num_seqs": "8",
            "max_seq_len": "1024",
            "max_num_tokens": "99",
            "vocab_size": "49152",
            "max_beam_width": "2",
            "max_tokens_in_paged_kv_cache": "4096",
            "enable_kv_cache_reuse": "true",
            "exclude_input_in_output": "false",
            "cancellation_check_period_ms": "100",
            "instances_share_engine": "false",
            "num_threads": "0",
            "num_draft_tokens": "0",
            "draft_model_dir": "",
            "engine_python": "",
            "lora_prefetch_dir": "",
            "max_loras": "4",
            "lora_cache_max_adapter_size": "64",
            "lora_cache_host_memory_bytes": "1073741824",
        },
        max_batch_size=8,
        is_decoupled=True,
    )


def test_named_model_has_the_prompt_format_for_clients() -> None:
    parameters = plan()["mine"].parameters
    names = ("chat_template", "bos_token", "eos_token", "adds_bos", "max_seq_len")
    assert [parameters[name] for name in names] == [
        ENGINE.chat_template, "<|im_start|>", "<|im_end|>", "false", "8192",
    ]  # fmt: skip


@pytest.mark.parametrize("layout", ["inflight", "vllm", "llmapi"])
def test_template_for_tools_is_rendered_if_the_model_has_one(layout: Any) -> None:
    assert "tool_chat_template" not in plan()["mine"].parameters
    engine = dataclasses.replace(ENGINE, tool_chat_template="{{ tools }}")
    models = plan_repository("mine", engine, ServingOptions(layout=layout)).models
    templates = [each.parameters.get("tool_chat_template") for each in models if each.module]
    assert "{{ tools }}" in templates


def test_kv_cache_holds_at_least_one_sequence() -> None:
    parameters = plan(max_batch_size=1)["tensorrt_llm"].parameters
    assert parameters["max_tokens_in_paged_kv_cache"] == "8192"


def test_parameters_override_options() -> None:
    parameters = {
        "triton_max_batch_size": "3",
        "max_beam_width": "1",
        "enable_kv_cache_reuse": "FALSE",
        "preprocessing_instance_count": "2",
        "max_queue_delay_microseconds": "5",
        "skip_special_tokens": "False",
    }
    models = plan(max_batch_size=8, parameters=parameters)
    assert {model.max_batch_size for model in models.values()} == {3}
    assert models["tensorrt_llm"].parameters["enable_kv_cache_reuse"] == "false"
    assert models["tensorrt_llm"].parameters["max_beam_width"] == "1"
    assert models["preprocessing"].instance_count == 2
    assert models["preprocessing"].max_queue_delay_microseconds == 5
    assert models["mine"].parameters["skip_special_tokens"] == "false"


def test_engine_limits_can_be_set_as_parameters() -> None:
    parameters = {"max_num_seqs": "2", "max_seq_len": "99", "max_num_tokens": "7"}
    models = plan(max_batch_size=8, max_seq_len=50, max_num_tokens=9, parameters=parameters)
    engine = models["tensorrt_llm"]
    assert {name: engine.parameters[name] for name in parameters} == parameters
    assert (engine.max_batch_size, models["mine"].parameters["max_seq_len"]) == (8, "99")


def test_names_of_other_models_can_be_set() -> None:
    names = {"tensorrt_llm_model_name": "b.tensorrt_llm", "preprocessing_model_name": "b.pre"}
    assert names.items() <= plan(parameters=names)["mine"].parameters.items()


@pytest.mark.parametrize(
    ("parameters", "batched"),
    [
        ({}, []),
        ({"max_queue_delay_microseconds": "100"}, ["preprocessing", "tensorrt_llm"]),
        ({"max_queue_size": "9"}, ["preprocessing", "tensorrt_llm"]),
        ({"default_timeout_microseconds": "9"}, ["tensorrt_llm"]),
        ({"priority_levels": "2", "default_priority_level": "1"}, ["tensorrt_llm"]),
    ],
    ids=str,
)
def test_dynamic_batcher_is_rendered_only_if_needed(
    parameters: dict[str, str], batched: list[str]
) -> None:
    assert [
        model.name for model in plan(parameters=parameters).values() if model.is_batched
    ] == batched


def test_queue_size_is_rendered() -> None:
    models = plan(parameters={"max_queue_size": "9"})
    assert models["preprocessing"].queue == QueuePolicy(max_queue_size=9)
    assert models["tensorrt_llm"].queue == QueuePolicy(max_queue_size=9)


def test_queue_priorities_and_timeouts_are_rendered() -> None:
    parameters = {
        "default_timeout_microseconds": "5000",
        "priority_levels": "3",
        "default_priority_level": "2",
    }
    assert plan(parameters=parameters)["tensorrt_llm"].queue == QueuePolicy(0, 5000, 3, 2)


@pytest.mark.parametrize(
    "parameters",
    [
        {"priority_levels": "3"},
        {"priority_levels": "3", "default_priority_level": "4"},
        {"default_priority_level": "1"},
    ],
)
def test_rejects_a_default_priority_outside_the_levels(parameters: dict[str, str]) -> None:
    with pytest.raises(BadInput, match="default_priority_level is"):
        plan(parameters=parameters)


def test_decoupled_mode_applies_to_all_models() -> None:
    models = plan(parameters={"decoupled_mode": "false"})
    assert not any(model.is_decoupled for model in models.values())


@pytest.mark.parametrize(
    "options", [{"max_seq_len": 8193}, {"parameters": {"max_seq_len": "8193"}}]
)
def test_rejects_a_length_beyond_the_context(options: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as raised:
        plan(**options)
    assert str(raised.value) == (
        "--max-seq-len 8193 exceeds the context length of mine.\n"
        "Why: the model was trained on sequences of up to 8192 tokens\n"
        "Next: set --max-seq-len to 8192 or less"
    )


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_names_of_the_layout_are_reserved(name: str) -> None:
    with pytest.raises(BadInput, match=f"A model cannot be named {name}"):
        plan_repository(name, ENGINE, ServingOptions())


def test_engine_without_a_chat_template() -> None:
    bare = dataclasses.replace(ENGINE, chat_template="", adds_bos=True)
    model = plan_repository("mine", bare, ServingOptions()).models[-1]
    assert (model.parameters["chat_template"], model.parameters["adds_bos"]) == ("", "true")
