"""The rendered files in the gpt layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tests.samples.builds import ENGINE
from tests.samples.tensorrt_engines import tensorrt_engine
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.contract import load_contracts
from trtllm_serve_cli.repository.model.model_repository import open_repository
from trtllm_serve_cli.repository.model.render import render_files, write_repository
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository
from trtllm_serve_cli.repository.settings.settings import (
    apply_changes,
    list_settings,
    plan_changes,
)
from trtllm_serve_cli.repository.validation.validate import validate_repository

# The inputs of upstream's models: name, type, "?" if it is optional, and its shape. Source:
# all_models/gpt/*/config.pbtxt in triton-inference-server/tensorrtllm_backend@v0.8.0.
CORE_INPUTS = """
input_ids INT32 -1|input_lengths INT32 1|request_output_len INT32 -1|end_id INT32 1|pad_id INT32 1
beam_width INT32? 1|temperature FP32? 1|runtime_top_k INT32? 1|runtime_top_p FP32? 1
len_penalty FP32? 1|repetition_penalty FP32? 1|min_length INT32? 1|presence_penalty FP32? 1
frequency_penalty FP32? 1|random_seed UINT64? 1|output_log_probs BOOL? 1
"""
ENSEMBLE_INPUTS = """
text_input STRING -1|max_tokens INT32 -1|bad_words STRING -1|stop_words STRING -1|end_id INT32? 1
pad_id INT32? 1|top_k INT32? 1|top_p FP32? 1|temperature FP32? 1|length_penalty FP32? 1
repetition_penalty FP32? 1|min_length INT32? 1|presence_penalty FP32? 1|frequency_penalty FP32? 1
random_seed UINT64? 1|beam_width INT32? 1|output_log_probs BOOL? 1
"""
PREPROCESSING_INPUTS = """
QUERY STRING -1|BAD_WORDS_DICT STRING -1|STOP_WORDS_DICT STRING -1|REQUEST_OUTPUT_LEN INT32 -1
"""
# The inputs that are not unsigned in 0.5 and 0.6.
SIGNED = {"input_ids", "input_lengths"}


def render(**options: Any) -> dict[str, str]:
    options = {"layout": "gpt", **options}
    return render_files(plan_repository("mine", ENGINE, ServingOptions(**options)))


def configs(**options: Any) -> dict[str, Any]:
    return {
        path.split("/")[0]: text_format.Parse(text, model_config_pb2.ModelConfig())
        for path, text in render(**options).items()
        if path.endswith("config.pbtxt")
    }


def inputs(config: Any) -> list[str]:
    return [
        f"{each.name} {model_config_pb2.DataType.Name(each.data_type).removeprefix('TYPE_')}"
        f"{'?' if each.optional else ''} {','.join(map(str, each.dims))}"
        for each in config.input
    ]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("preprocessing", PREPROCESSING_INPUTS),
        ("tensorrt_llm", CORE_INPUTS),
        ("postprocessing", "TOKENS_BATCH INT32 -1,-1"),
        ("ensemble", ENSEMBLE_INPUTS),
        ("mine", ENSEMBLE_INPUTS),
    ],
)
def test_inputs_are_upstreams(model: str, expected: str) -> None:
    assert inputs(configs()[model]) == [
        each for line in expected.strip().splitlines() for each in line.split("|")
    ]


def test_outputs_are_upstreams() -> None:
    assert {
        name: [each.name for each in config.output] for name, config in configs().items()
    } == {
        "preprocessing": [
            "INPUT_ID", "REQUEST_INPUT_LEN", "BAD_WORDS_IDS", "STOP_WORDS_IDS",
            "REQUEST_OUTPUT_LEN", "PROMPT_LEARNING_TASK_NAME_IDS",
        ],
        "tensorrt_llm": ["output_ids", "log_probs"],
        "postprocessing": ["OUTPUT"],
        "ensemble": ["text_output"],
        "mine": ["text_output"],
    }  # fmt: skip


@pytest.mark.parametrize("model", ["preprocessing", "tensorrt_llm", "ensemble"])
def test_unsigned_types_are_those_of_the_oldest_versions(model: str) -> None:
    types = {each.name: each.type for each in load_contracts("0.6")[f"gpt/{model}"].inputs}
    rendered = configs(parameters={"integer_data_type": "TYPE_UINT32"})[model]
    assert {
        each.name: model_config_pb2.DataType.Name(each.data_type)
        for each in rendered.input
        if each.name != "frequency_penalty"
    } == types
    assert {name for name, type_ in types.items() if type_ == "TYPE_INT32"} <= SIGNED


def test_models_have_one_response_and_no_queue() -> None:
    for config in configs().values():
        assert config.backend == "python"
        assert not config.model_transaction_policy.decoupled
        assert not config.HasField("dynamic_batching")


def test_engine_is_named_as_in_upstream() -> None:
    parameters = configs()["tensorrt_llm"].parameters
    assert parameters["engine_dir"].string_value == "/engines/mine"
    assert "gpt_model_path" not in parameters
    assert "tllm_runtime.models.gpt" in render()["tensorrt_llm/1/model.py"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("decoupled_mode", "false"),
        ("default_timeout_microseconds", "2"),
        ("exclude_input_in_output", "true"),
        ("ask_preprocessing", "true"),
    ],
)
def test_rejects_a_parameter_without_effect(name: str, value: str) -> None:
    with pytest.raises(BadInput, match=f"{name} parameter has no effect in the gpt layout"):
        render(parameters={name: value})


def test_other_layouts_reject_the_integer_type() -> None:
    with pytest.raises(
        BadInput, match="integer_data_type parameter has no effect in the inflight layout"
    ):
        render(layout="inflight", parameters={"integer_data_type": "TYPE_UINT32"})


def test_rejects_several_engines() -> None:
    parameters = {"tensorrt_llm_instance_count": "2"}
    with pytest.raises(BadInput, match="The gpt layout cannot serve 2 engines"):
        render(parameters=parameters)
    assert render(parameters=parameters | {"instances_share_engine": "true"})


def test_rejects_a_tensorrt_engine(tmp_path: Path) -> None:
    engine = tensorrt_engine(tmp_path)
    with pytest.raises(BadInput, match="gpt layout does not support the tensorrt engine kind"):
        plan_repository("mine", engine, ServingOptions(layout="gpt"))


def test_settings_of_a_rendered_repository_can_be_changed(tmp_path: Path) -> None:
    plan = plan_repository("mine", ENGINE, ServingOptions(layout="gpt"))
    write_repository(plan, tmp_path / "mine")
    repository = open_repository(tmp_path / "mine")
    changes = plan_changes(repository, {"integer_data_type": "TYPE_UINT32", "max_num_seqs": "3"})
    assert {(each.model, each.place) for each in changes} >= {
        ("tensorrt_llm", "parameters.max_num_seqs"),
        ("tensorrt_llm", "input.end_id.data_type"),
        ("mine", "input.max_tokens.data_type"),
        ("preprocessing", "output.REQUEST_OUTPUT_LEN.data_type"),
    }
    assert "TYPE_UINT32" in apply_changes(repository, changes)["ensemble"]
    assert not [each for each in validate_repository(repository) if "tensor" in each.what]


UPSTREAM = """\
name: "tensorrt_llm"
backend: "python"
max_batch_size: 1024
input [ { name: "end_id" data_type: TYPE_INT32 dims: [ 1 ] reshape: { shape: [ ] } } ]
output [ { name: "output_ids" data_type: TYPE_INT32 dims: [ -1, -1 ] } ]
parameters { key: "engine_dir" value: { string_value: "${engine_dir}" } }
parameters: { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value: { string_value: "no" } }
"""


def test_copy_of_upstream_is_recognized(tmp_path: Path) -> None:
    (tmp_path / "tensorrt_llm" / "1").mkdir(parents=True)
    (tmp_path / "tensorrt_llm" / "config.pbtxt").write_text(UPSTREAM)
    repository = open_repository(tmp_path)
    assert repository.layout == "gpt"
    (change,) = plan_changes(repository, {"engine_dir": "/e"})
    assert (change.model, change.place) == ("tensorrt_llm", "parameters.engine_dir")
    assert "${engine_dir} is not filled in" in {
        each.what for each in validate_repository(repository)
    }
    assert {each.parameter.name: each.value for each in list_settings(repository)} == {
        "triton_max_batch_size": "1024",
        "engine_dir": "${engine_dir}",
        "integer_data_type": "TYPE_INT32",
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
    }
    with pytest.raises(BadInput, match="max_beam_width parameter cannot be set"):
        plan_changes(repository, {"max_beam_width": "2"})
