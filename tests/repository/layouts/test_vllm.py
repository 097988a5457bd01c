"""The rendered files in the vllm layout."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tests.samples.builds import ENGINE
from tests.samples.tensorrt_engines import tensorrt_engine
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.render import render_files
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository

CHECKPOINT = dataclasses.replace(ENGINE, path=Path("/models/hf"), kind="vllm")


def render(**options: Any) -> dict[str, str]:
    options = {"layout": "vllm", **options}
    return render_files(plan_repository("mine", CHECKPOINT, ServingOptions(**options)))


def test_config_has_the_tensors_of_the_backend() -> None:
    text = render()["mine/config.pbtxt"]
    assert text_format.Parse(text, model_config_pb2.ModelConfig()) == text_format.Parse(
        """
        name: "mine"
        backend: "vllm"
        max_batch_size: 0
        model_transaction_policy { decoupled: true }
        input { name: "text_input" data_type: TYPE_STRING dims: 1 }
        input { name: "image" data_type: TYPE_STRING dims: -1 optional: true }
        input { name: "stream" data_type: TYPE_BOOL dims: 1 optional: true }
        input { name: "sampling_parameters" data_type: TYPE_STRING dims: 1 optional: true }
        input { name: "exclude_input_in_output" data_type: TYPE_BOOL dims: 1 optional: true }
        input { name: "return_finish_reason" data_type: TYPE_BOOL dims: 1 optional: true }
        input { name: "return_cumulative_logprob" data_type: TYPE_BOOL dims: 1 optional: true }
        input { name: "return_logprobs" data_type: TYPE_BOOL dims: 1 optional: true }
        input { name: "return_num_input_tokens" data_type: TYPE_BOOL dims: 1 optional: true }
        input { name: "return_num_output_tokens" data_type: TYPE_BOOL dims: 1 optional: true }
        output { name: "text_output" data_type: TYPE_STRING dims: -1 }
        output { name: "finish_reason" data_type: TYPE_STRING dims: -1 }
        output { name: "cumulative_logprob" data_type: TYPE_FP32 dims: -1 }
        output { name: "logprobs" data_type: TYPE_STRING dims: -1 }
        output { name: "num_input_tokens" data_type: TYPE_UINT32 dims: 1 }
        output { name: "num_output_tokens" data_type: TYPE_UINT32 dims: -1 }
        instance_group { count: 1 kind: KIND_MODEL }
        """,
        model_config_pb2.ModelConfig(),
    )


def test_layout_has_one_model_with_two_files() -> None:
    assert sorted(render()) == ["mine/1/model.json", "mine/config.pbtxt"]


def test_vllm_chooses_what_was_not_requested() -> None:
    assert json.loads(render()["mine/1/model.json"]) == {
        "model": "/models/hf",
        "tensor_parallel_size": 1,
    }


def test_options_and_parameters_become_engine_arguments() -> None:
    parameters = {
        "tensor_parallel_size": "2",
        "gpu_memory_utilization": "0.85",
        "enable_kv_cache_reuse": "false",
        "tokenizer_dir": "/tok",
    }
    files = render(max_batch_size=32, max_seq_len=4096, max_num_tokens=2048, parameters=parameters)
    assert json.loads(files["mine/1/model.json"]) == {
        "model": "/models/hf",
        "tensor_parallel_size": 2,
        "gpu_memory_utilization": 0.85,
        "enable_prefix_caching": False,
        "tokenizer": "/tok",
        "max_num_seqs": 32,
        "max_model_len": 4096,
        "max_num_batched_tokens": 2048,
    }


def test_rejects_a_parameter_that_the_backend_does_not_have() -> None:
    with pytest.raises(
        BadInput, match="bls_instance_count parameter has no effect in the vllm layout"
    ):
        render(parameters={"bls_instance_count": "2"})


def test_engine_worker_serves_other_engine_kinds() -> None:
    options = ServingOptions(layout="vllm", max_seq_len=1024, parameters={"max_queue_size": "9"})
    files = render_files(plan_repository("mine", ENGINE, options))
    config = text_format.Parse(files["mine/config.pbtxt"], model_config_pb2.ModelConfig())
    backends = text_format.Parse(render()["mine/config.pbtxt"], model_config_pb2.ModelConfig())
    assert (config.input, config.output) == (backends.input, backends.output)
    assert (config.backend, config.max_batch_size) == ("python", 0)
    assert config.model_transaction_policy.decoupled
    assert "tllm_runtime.models.vllm" in files["mine/1/model.py"]
    arguments = json.loads(files["mine/1/model.json"])
    expected = {"model": "/engines/mine", "max_model_len": 1024, "max_queue_size": 9}
    assert expected.items() <= arguments.items()
    assert "engine_kind" not in arguments


def test_engine_worker_rejects_a_parameter_without_effect() -> None:
    options = ServingOptions(layout="vllm", parameters={"decoupled_mode": "false"})
    with pytest.raises(BadInput, match="decoupled_mode parameter has no effect in the vllm layout"):
        plan_repository("mine", ENGINE, options)


def test_rejects_a_tensorrt_engine(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as raised:
        plan_repository("mine", tensorrt_engine(tmp_path), ServingOptions(layout="vllm"))
    assert str(raised.value) == (
        "The vllm layout does not support the tensorrt engine kind.\n"
        "Why: the layout supports only openvino and pytorch and sim and vllm\n"
        "Next: choose --layout inflight"
    )
