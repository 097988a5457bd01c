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
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.render import render_files
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository

CHECKPOINT = dataclasses.replace(ENGINE, path=Path("/models/hf"), kind="vllm")


def render(**options: Any) -> dict[str, str]:
    options = {"layout": "vllm", **options}
    return render_files(plan_repository("mine", CHECKPOINT, ServingOptions(**options)))


def test_config_matches_the_sample_of_the_backend() -> None:
    text = render()["mine/config.pbtxt"]
    assert text_format.Parse(text, model_config_pb2.ModelConfig()) == text_format.Parse(
        """
        name: "mine"
        backend: "vllm"
        max_batch_size: 0
        model_transaction_policy { decoupled: true }
        input { name: "text_input" data_type: TYPE_STRING dims: 1 }
        input { name: "stream" data_type: TYPE_BOOL dims: 1 }
        input { name: "sampling_parameters" data_type: TYPE_STRING dims: 1 optional: true }
        output { name: "text_output" data_type: TYPE_STRING dims: -1 }
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
    with pytest.raises(BadInput, match="bls_instance_count has no effect in the layout vllm"):
        render(parameters={"bls_instance_count": "2"})


def test_rejects_other_engine_kinds() -> None:
    with pytest.raises(BadInput) as raised:
        plan_repository("mine", ENGINE, ServingOptions(layout="vllm"))
    assert str(raised.value) == (
        "The engine kind openvino cannot be served in the layout vllm.\n"
        "Why: the layout supports only vllm\n"
        "Next: choose --layout inflight or gpt or llmapi"
    )
