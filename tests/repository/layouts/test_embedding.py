"""The rendered files in the embedding layout."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tests.samples.builds import ENGINE
from trtllm_serve_cli.client.model_info import parse_model_config
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.model_repository import open_repository
from trtllm_serve_cli.repository.model.render import render_files, write_repository
from trtllm_serve_cli.repository.model.store import read_manifest
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository
from trtllm_serve_cli.repository.settings.settings import list_settings
from trtllm_serve_cli.repository.validation.validate import validate_repository
from trtllm_serve_cli.runtime.embedding_settings import EmbeddingSettings
from trtllm_serve_cli.runtime.engines.worker_config import embedding_config
from trtllm_serve_cli.runtime.triton.parameters import Parameters

SETTINGS = EmbeddingSettings(8, is_normalized=True, prompts={"query": 'Find "it": '})
EMBEDDER = dataclasses.replace(ENGINE, embedding=SETTINGS, max_position_embeddings=512)


def render(**options: Any) -> Any:
    serving = ServingOptions(**{"layout": "embedding", **options})
    files = render_files(plan_repository("mine", EMBEDDER, serving))
    assert {name.split("/")[0] for name in files} == {"mine"}
    return text_format.Parse(files["mine/config.pbtxt"], model_config_pb2.ModelConfig())


def entries(config: Any) -> dict[str, str]:
    return {name: each.string_value for name, each in config.parameters.items()}


def test_model_has_one_output_and_is_not_decoupled() -> None:
    config = render()
    tensors = [(each.name, each.optional) for each in config.input]
    assert tensors == [
        ("text_input", True),
        ("input_ids", True),
        ("prompt_name", True),
        ("dimensions", True),
    ]
    assert [(each.name, list(each.dims)) for each in config.output] == [
        ("embedding", [-1]),
        ("num_input_tokens", [1]),
    ]
    assert not config.model_transaction_policy.decoupled
    assert not config.HasField("dynamic_batching")


def test_client_and_worker_read_the_settings() -> None:
    config = render(max_batch_size=16, parameters={"num_threads": "3", "max_num_tokens": "4096"})
    as_dict = {
        "parameters": {name: {"string_value": value} for name, value in entries(config).items()},
        "instance_group": [{"count": 1}],
    }
    assert parse_model_config("mine", as_dict).embedding == SETTINGS
    args = {"model_config": json.dumps(as_dict), "model_name": "mine", "model_version": "1"}
    worker = embedding_config(Parameters(args))
    assert EmbeddingSettings.from_dict(worker.pop("embedding")) == SETTINGS
    assert worker == {
        "engine_dir": "/engines/mine",
        "max_batch_size": 16,
        "max_queue_size": 0,
        "max_seq_len": 512,
        "max_num_tokens": 4096,
        "vocab_size": 49152,
        "num_threads": 3,
        "gpu_device_ids": [],
        "gpu_memory_fraction": "",
        "llm": {},
    }


def test_plan_has_the_limit_of_the_rendered_model() -> None:
    plan = plan_repository("mine", EMBEDDER, ServingOptions(layout="embedding"))
    assert plan.parameters["max_num_tokens"] == entries(render())["max_num_tokens"] == "16384"


def test_vllm_reads_its_arguments() -> None:
    engine = dataclasses.replace(
        EMBEDDER, kind="vllm", llm_arguments={"tensor_parallel_size": 2, "dtype": "auto"}
    )
    parameters = {
        "vllm_args": '{"dtype": "float16"}',
        "kv_cache_free_gpu_mem_fraction": "0.4",
        "gpu_device_ids": "0,1",
    }
    options = ServingOptions(
        layout="embedding", parameters=parameters, engine_python="/vllm/bin/python3"
    )
    files = render_files(plan_repository("mine", engine, options))
    config = text_format.Parse(files["mine/config.pbtxt"], model_config_pb2.ModelConfig())
    written = entries(config)
    assert json.loads(written["llm_arguments"]) == {"tensor_parallel_size": 2, "dtype": "float16"}
    assert (written["kv_cache_free_gpu_mem_fraction"], written["gpu_device_ids"]) == ("0.4", "0,1")
    assert written["engine_python"] == "/vllm/bin/python3"


def test_queue_is_limited_by_the_batcher() -> None:
    batching = render(parameters={"max_queue_size": "9"}).dynamic_batching
    assert batching.default_queue_policy.max_queue_size == 9


@pytest.mark.parametrize("layout", ["inflight", "gpt", "llmapi", "vllm"])
def test_other_layouts_are_refused(layout: Any) -> None:
    with pytest.raises(BadInput, match=f"cannot be served in the {layout} layout"):
        plan_repository("mine", EMBEDDER, ServingOptions(layout=layout))


def test_a_generating_model_is_refused() -> None:
    with pytest.raises(BadInput, match="cannot be served in the embedding layout"):
        plan_repository("mine", ENGINE, ServingOptions(layout="embedding"))


def test_parameters_without_effect_are_refused() -> None:
    with pytest.raises(BadInput, match="max_beam_width"):
        render(parameters={"max_beam_width": "2"})


def test_written_repository_is_valid_and_has_no_settings(tmp_path: Path) -> None:
    plan = plan_repository("mine", EMBEDDER, ServingOptions(layout="embedding"))
    write_repository(plan, tmp_path / "mine")
    assert read_manifest(tmp_path / "mine").text_model == "mine"
    repository = open_repository(tmp_path / "mine")
    assert [each for each in validate_repository(repository) if each.severity == "error"] == []
    with pytest.raises(BadInput, match="settings of mine cannot be listed or changed") as raised:
        list_settings(repository)
    assert raised.value.next_step == (
        f"to change a setting, run `tllm export --repo {tmp_path}/mine > mine.yaml && tllm import "
        "-f mine.yaml --param NAME=VALUE`"
    )
