"""The table of parameters, and rejected values."""

from __future__ import annotations

import pytest

from tests.samples.builds import ENGINE
from trtllm_serve_cli.engine_kinds.registry import kind_names
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.contract import load_contracts
from trtllm_serve_cli.repository.model.parameters import (
    Parameter,
    check_parameters,
    check_value,
    defaults_for,
    list_unused,
    load_parameters,
)
from trtllm_serve_cli.repository.planning.repository_plan import RESERVED_NAMES, plan_repository

ROLES = set(RESERVED_NAMES) | {f"gpt/{role}" for role in RESERVED_NAMES}
FIELDS = {
    "backend",
    "max_batch_size",
    "model_transaction_policy.decoupled",
    "instance_group.count",
    "dynamic_batching.preferred_batch_size",
    "dynamic_batching.max_queue_delay_microseconds",
    "dynamic_batching.default_queue_policy.max_queue_size",
    "dynamic_batching.default_queue_policy.default_timeout_microseconds",
    "dynamic_batching.priority_levels",
    "dynamic_batching.default_priority_level",
}
TABLE = load_parameters()


def test_row_of_the_table_becomes_a_parameter() -> None:
    assert TABLE["batching_strategy"] == Parameter(
        name="batching_strategy",
        type="choice",
        fills={"tensorrt_llm": ("parameters.gpt_model_type",)},
        explanation="In-flight batching, or V1 batching, which starts a batch only after the "
        "previous batch has finished.",
        default="inflight_fused_batching",
        choices=("inflight_fused_batching", "inflight_batching", "V1", "v1"),
        of_engine=True,
        since="0.6",
    )
    assert TABLE["batching_strategy"].engines == ("tensorrt",)


@pytest.mark.parametrize("parameter", TABLE.values(), ids=lambda parameter: parameter.name)
def test_row_is_consistent(parameter: Parameter) -> None:
    assert set(parameter.fills) <= ROLES
    assert set(parameter.engines) <= set(kind_names())
    assert bool(parameter.choices) == (parameter.type == "choice")
    assert parameter.explanation.endswith(".")
    for role, places in parameter.fills.items():
        # Text models of the gpt layout have the tensors of its ensemble.
        model = role.removesuffix("_draft").replace("gpt/tensorrt_llm_bls", "gpt/ensemble")
        contract = load_contracts()[model]
        tensors = {f"input.{each.name}.data_type" for each in contract.inputs}
        tensors |= {f"output.{each.name}.data_type" for each in contract.outputs}
        assert all(place in FIELDS | tensors or place[:11] == "parameters." for place in places)


@pytest.mark.parametrize("kind", kind_names())
def test_defaults_are_valid(kind: str) -> None:
    assert check_parameters(defaults_for(kind), kind) == defaults_for(kind)


def test_table_has_every_rendered_entry() -> None:
    keys = {
        key for model in plan_repository("mine", ENGINE, ServingOptions()).models
        for key in model.parameters
    }  # fmt: skip
    assert keys <= {key for parameter in TABLE.values() for key in parameter.keys}


@pytest.mark.parametrize(
    ("name", "next_step"),
    [
        ("max_beam_widht", "use max_beam_width instead"),
        ("gpt_model_path", "use engine_dir instead"),
        ("zzz", "choose a parameter of the openvino engine kind: accumulate_tokens, "),
    ],
)
def test_unknown_parameter_error_suggests_similar_names(name: str, next_step: str) -> None:
    with pytest.raises(BadInput, match=f"The '{name}' parameter does not exist") as raised:
        check_parameters({name: "1"}, "openvino")
    assert raised.value.next_step.startswith(next_step)


def test_entry_of_another_engine_kind_is_unused() -> None:
    overrides = {"kv_cache_free_gpu_mem_fraction": "0.9", "max_beam_width": "2"}
    assert check_parameters(overrides, "openvino") == overrides
    assert [each.name for each in list_unused(overrides, "openvino")] == [
        "kv_cache_free_gpu_mem_fraction"
    ]


def test_rejects_a_field_of_another_engine_kind() -> None:
    with pytest.raises(BadInput) as raised:
        check_parameters({"logits_datatype": "TYPE_FP16"}, "openvino")
    assert str(raised.value) == (
        "The logits_datatype parameter has no effect on the openvino engine kind.\n"
        "Why: the parameter applies only to tensorrt\n"
        "Next: omit the parameter"
    )


def test_rejects_an_override_of_an_engine_fact() -> None:
    with pytest.raises(BadInput, match="The vocab_size parameter cannot be set"):
        check_parameters({"vocab_size": "7"}, "openvino")


@pytest.mark.parametrize(
    ("name", "value", "next_step"),
    [
        ("enable_kv_cache_reuse", "yes", "set enable_kv_cache_reuse=true or"),
        ("max_beam_width", "0", "set max_beam_width=N with a whole number N from 1 to 999999999"),
        ("max_beam_width", "2.5", "set max_beam_width=N"),
        ("max_beam_width", "-1", "set max_beam_width=N"),
        ("max_beam_width", "", "set max_beam_width=N"),
        ("max_beam_width", "²", "set max_beam_width=N"),
        ("triton_max_batch_size", "9" * 5000, "set triton_max_batch_size=N"),
        ("num_threads", "many", "set num_threads=N with a whole number N from 0 to 1024"),
        ("num_threads", "100000", "set num_threads=N with a whole number N from 0 to 1024"),
        (
            "tensorrt_llm_instance_count",
            "100000",
            "set tensorrt_llm_instance_count=N with a whole number N from 1 to 1024",
        ),
        ("engine_dir", "", "set engine_dir=PATH"),
        ("tensorrt_llm_model_name", "a/b", "set tensorrt_llm_model_name=… with a model name"),
    ],
)
def test_rejects_an_invalid_value(name: str, value: str, next_step: str) -> None:
    with pytest.raises(BadInput, match=f"is not a valid value for the {name} parameter") as raised:
        check_parameters({name: value}, "openvino")
    assert raised.value.next_step.startswith(next_step)


@pytest.mark.parametrize(
    ("name", "value", "next_step"),
    [
        ("kv_cache_free_gpu_mem_fraction", "1.01", "=X with a number X from 0 to 1"),
        ("kv_cache_free_gpu_mem_fraction", "nan", "=X with a number X from 0 to 1"),
        ("kv_cache_free_gpu_mem_fraction", "half", "=X with a number X from 0 to 1"),
        ("batching_strategy", "v2", "=inflight_fused_batching or batching_strategy=inflight_ba"),
        (
            "max_attention_window_size",
            "1;2",
            "=… with whole numbers, for example 4096 or 4096,1024",
        ),
        ("gpu_device_ids", "0,,1", "=… with whole numbers, for example 0,1 for one"),
        ("medusa_choices", "0,1", "=… with a tree, for example {0, 0}, {0, 1}"),
    ],
)
def test_rejects_an_invalid_value_of_a_tensorrt_parameter(
    name: str, value: str, next_step: str
) -> None:
    with pytest.raises(BadInput) as raised:
        check_parameters({name: value}, "tensorrt")
    assert raised.value.next_step.startswith(f"set {name}{next_step}")


def test_check_normalizes_booleans() -> None:
    overrides = {
        "enable_kv_cache_reuse": "FALSE",
        "exclude_input_in_output": "1",
        "kv_cache_free_gpu_mem_fraction": "0.85",
        "kv_cache_host_memory_bytes": "45000000000",
        "gpu_device_ids": "0,1;2,3",
        "medusa_choices": "{0, 0}, {0,1}",
        "max_attention_window_size": "4096,1024",
        "lora_prefetch_dir": "",
    }
    spelled = {"enable_kv_cache_reuse": "false", "exclude_input_in_output": "true"}
    assert check_parameters(overrides, "tensorrt") == overrides | spelled


def test_only_the_cpp_backend_accepts_an_empty_value() -> None:
    parameter = TABLE["max_tokens_in_paged_kv_cache"]
    assert check_value(parameter, "", "tensorrt") == ""
    with pytest.raises(BadInput):
        check_value(parameter, "", "openvino")
