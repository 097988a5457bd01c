"""The rendered files in the llmapi layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tests.samples.builds import ENGINE
from tests.samples.tensorrt_engines import tensorrt_engine
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.render import render_files
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository


def render(**options: Any) -> dict[str, str]:
    options = {"layout": "llmapi", **options}
    return render_files(plan_repository("mine", ENGINE, ServingOptions(**options)))


def test_model_yaml_has_all_arguments() -> None:
    parameters = {"tokenizer_dir": "/tok", "max_queue_size": "9", "enable_kv_cache_reuse": "false"}
    files = render(max_batch_size=8, max_seq_len=1024, parameters=parameters)
    arguments = yaml.safe_load(files["tensorrt_llm/1/model.yaml"])
    assert {
        "backend": "openvino",
        "model": "/engines/mine",
        "tokenizer": "/tok",
        "max_batch_size": 8,
        "max_seq_len": 1024,
        "kv_cache_config": {"max_tokens": 4096, "enable_block_reuse": False},
        "triton_config": {
            "max_batch_size": 0,
            "decoupled": True,
            "cancellation_check_period_ms": 100,
            "max_queue_size": 9,
        },
    }.items() <= arguments.items()


def test_layout_has_one_model_without_a_batch_dimension() -> None:
    files = render(parameters={"decoupled_mode": "false"})
    assert {path.split("/")[0] for path in files} == {"tensorrt_llm"}
    config = text_format.Parse(files["tensorrt_llm/config.pbtxt"], model_config_pb2.ModelConfig())
    assert config.max_batch_size == 0
    assert not config.model_transaction_policy.decoupled
    assert not config.HasField("dynamic_batching")
    assert "tllm_runtime.models.llmapi" in files["tensorrt_llm/1/model.py"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bls_instance_count", "2"),
        ("triton_max_batch_size", "2"),
        ("instances_share_engine", "true"),
    ],
)
def test_rejects_a_parameter_without_effect(name: str, value: str) -> None:
    assert name not in yaml.safe_load(render()["tensorrt_llm/1/model.yaml"])
    with pytest.raises(BadInput, match=f"{name} parameter has no effect in the llmapi layout"):
        render(parameters={name: value})


def test_rejects_a_tensorrt_engine(tmp_path: Path) -> None:
    engine = tensorrt_engine(tmp_path)
    with pytest.raises(BadInput, match="llmapi layout does not support the tensorrt engine kind"):
        plan_repository("mine", engine, ServingOptions(layout="llmapi"))
