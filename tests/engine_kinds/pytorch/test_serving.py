"""Repositories for TensorRT-LLM's LLM API, in both layouts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tests.samples.builds import ENGINE
from tests.samples.tensorrt_engines import write_tokenizer
from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.engine_kinds.pytorch.llm_arguments import plan_llm_arguments
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.model_repository import open_repository
from trtllm_serve_cli.repository.model.render import render_files, write_repository
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository
from trtllm_serve_cli.repository.settings.settings import apply_changes, list_settings, plan_changes
from trtllm_serve_cli.repository.validation.validate import validate_repository
from trtllm_serve_cli.runtime.engines.kinds import find_kind
from trtllm_serve_cli.runtime.triton.parameters import Parameters

_SAMPLER = {
    "sampler_type": "TRTLLMSampler",
    "cuda_graph_config": {"enable_padding": True, "max_batch_size": 256},
}


def engine(context: int = 4096, weights: str | None = None, **options: Any) -> Engine:
    return dataclasses.replace(
        ENGINE,
        kind="pytorch",
        details="1.2.0",
        path=Path("/models/hf"),
        max_position_embeddings=context,
        llm_arguments=plan_llm_arguments(EngineOptions(**options), "1.2.0", weights=weights),
    )


def model_yaml(of: Engine, **options: Any) -> dict[str, Any]:
    serving = ServingOptions(layout="llmapi", **options)
    text = render_files(plan_repository("mine", of, serving))["tensorrt_llm/1/model.yaml"]
    arguments: dict[str, Any] = yaml.safe_load(text)
    assert arguments.pop("triton_config") == {
        "max_batch_size": 0,
        "decoupled": True,
        "cancellation_check_period_ms": 100,
        "max_queue_size": 0,
    }
    return arguments


def expected(context: int, tp: int = 1, pp: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "model": "/models/hf",
        "tokenizer": "/models/hf",
        "backend": "pytorch",
        "tensor_parallel_size": tp,
        "pipeline_parallel_size": pp,
        "max_batch_size": 256,
        "max_seq_len": context,
        "max_num_tokens": 8192,
        "max_beam_width": 1,
        "kv_cache_config": {"enable_block_reuse": True},
        **_SAMPLER,
        **more,
    }


# The models of upstream's guides, for the LLM API of 1.2.
GUIDES = {
    "GPT-2 medium TP 4": (
        engine(1024, tp=4, dtype="float16"),
        expected(1024, tp=4, dtype="float16"),
    ),
    "Llama 2 7B": (engine(dtype="float16"), expected(4096, dtype="float16")),
    "Llama 2 7B TP 4": (engine(tp=4, dtype="float16"), expected(4096, tp=4, dtype="float16")),
    "Llama 2 70B TP 4 PP 2": (
        engine(tp=4, pp=2, dtype="float16"),
        expected(4096, tp=4, pp=2, dtype="float16"),
    ),
    "Mixtral 8x22B TP 8, experts TP 2 EP 4": (
        engine(65536, tp=8, moe_tp=2, moe_ep=4),
        expected(65536, tp=8, moe_tensor_parallel_size=2, moe_expert_parallel_size=4),
    ),
    "Llama 7B, LoRA of rank 8 on q, k, v": (
        engine(
            2048,
            lora_dir=("/adapters/japanese", "/adapters/luotuo"),
            lora_target_modules=("attn_q", "attn_k", "attn_v"),
            max_lora_rank=8,
        ),
        expected(
            2048,
            enable_lora=True,
            lora_config={
                "lora_dir": ["/adapters/japanese", "/adapters/luotuo"],
                "lora_target_modules": ["attn_q", "attn_k", "attn_v"],
                "max_lora_rank": 8,
            },
            peft_cache_config={"max_adapter_size": 8, "host_cache_size": 1 << 30},
        ),
    ),
    "Llama 3.1 8B fp8": (
        engine(131072, weights="fp8", quantization="fp8", kv_cache_dtype="fp8"),
        expected(131072, kv_cache_config={"dtype": "fp8", "enable_block_reuse": True}),
    ),
}


@pytest.mark.parametrize(("of", "arguments"), GUIDES.values(), ids=GUIDES)
def test_model_yaml_matches_upstreams_guides(of: Engine, arguments: dict[str, Any]) -> None:
    assert model_yaml(of) == arguments


def test_parameters_become_llm_arguments() -> None:
    parameters = {
        "kv_cache_free_gpu_mem_fraction": "0.8",
        "enable_chunked_context": "true",
        "guided_decoding_backend": "xgrammar",
        "llm_args": '{"attn_backend": "FLASHINFER", "kv_cache_config": {"tokens_per_block": 64}}',
        "tokenizer_dir": "/tok",
    }
    assert model_yaml(engine(), max_batch_size=8, parameters=parameters) == expected(
        4096,
        tokenizer="/tok",
        max_batch_size=8,
        enable_chunked_prefill=True,
        guided_decoding_backend="xgrammar",
        attn_backend="FLASHINFER",
        kv_cache_config={
            "enable_block_reuse": True,
            "free_gpu_memory_fraction": 0.8,
            "tokens_per_block": 64,
        },
        cuda_graph_config={"enable_padding": True, "max_batch_size": 8},
    )


@pytest.mark.parametrize(
    ("graphs", "rendered"),
    [
        ({}, {"enable_padding": True, "max_batch_size": 256}),
        ({"max_batch_size": 64}, {"enable_padding": True, "max_batch_size": 64}),
        ({"batch_sizes": [1, 8]}, {"enable_padding": True, "batch_sizes": [1, 8]}),
        ({"enable_padding": False}, {"enable_padding": False}),
        (None, None),
    ],
    ids=["default", "largest size", "sizes", "no padding", "no graphs"],
)
def test_graphs_cover_all_batch_sizes_by_default(graphs: Any, rendered: Any) -> None:
    parameters = {"llm_args": json.dumps({"cuda_graph_config": graphs})}
    assert model_yaml(engine(), parameters=parameters)["cuda_graph_config"] == rendered


def worker_config(files: dict[str, str], **more: str) -> dict[str, Any]:
    """Return the worker configuration that the Python model derives from its `config.pbtxt`."""
    text = files["tensorrt_llm/config.pbtxt"]
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    entries = {
        name: {"string_value": value.string_value} for name, value in config.parameters.items()
    }
    args = {"model_config": json.dumps({"parameters": entries}), "model_name": "tensorrt_llm"}
    parameters = Parameters({**args, "model_version": "1", **more})
    worker_config = find_kind("pytorch").worker_config
    assert worker_config is not None
    return worker_config(parameters)


def test_worker_gets_the_same_arguments_in_the_inflight_layout() -> None:
    for of, arguments in GUIDES.values():
        config = worker_config(render_files(plan_repository("mine", of, ServingOptions())))
        assert {"backend": "pytorch", **config["llm"]} == arguments


def test_worker_config_has_gpus_and_adapters() -> None:
    of = engine(lora_target_modules=("attn_q",), max_lora_rank=8)
    parameters = {
        "lora_prefetch_dir": "/adapters",
        "gpu_device_ids": "0,1;2,3",
        "max_queue_size": "5",
    }
    files = render_files(plan_repository("mine", of, ServingOptions(parameters=parameters)))
    config = worker_config(files, model_instance_name="tensorrt_llm_0_1")
    del config["llm"]
    assert config == {
        "max_batch_size": 256,
        "max_queue_size": 0,
        "max_seq_len": 4096,
        "vocab_size": 49152,
        "gpu_device_ids": ["2", "3"],
        "lora_prefetch_dir": "/adapters",
        "lora_cache_max_adapter_size": 8,
        "lora_cache_host_memory_bytes": 1 << 30,
    }


def test_other_parameters_stay_in_config_pbtxt() -> None:
    parameters = {"engine_python": "/venv/bin/python", "add_special_tokens": "false"}
    serving = ServingOptions(layout="llmapi", parameters=parameters)
    files = render_files(plan_repository("mine", engine(), serving))
    config = text_format.Parse(files["tensorrt_llm/config.pbtxt"], model_config_pb2.ModelConfig())
    entries = {name: value.string_value for name, value in config.parameters.items()}
    assert {"add_special_tokens": "false", "engine_python": "/venv/bin/python",
            "vocab_size": "49152", "engine_kind": "pytorch"}.items() <= entries.items()  # fmt: skip
    assert not {"max_num_seqs", "llm_args", "gpt_model_path"} & set(entries)


@pytest.mark.parametrize(("version", "has_adapters"), [("1.2.1", False), ("1.3.0", True)])
def test_llmapi_layout_has_the_tensors_of_the_version(version: str, has_adapters: bool) -> None:
    of = dataclasses.replace(engine(), details=version)
    files = render_files(plan_repository("mine", of, ServingOptions(layout="llmapi")))
    config = text_format.Parse(files["tensorrt_llm/config.pbtxt"], model_config_pb2.ModelConfig())
    assert ("lora_name" in {each.name for each in config.input}) == has_adapters


def test_rejects_a_beam_width_that_differs_from_the_arguments() -> None:
    with pytest.raises(BadInput, match="The parameter max_beam_width is 4, but"):
        plan_repository("mine", engine(), ServingOptions(parameters={"max_beam_width": "4"}))


@pytest.mark.parametrize(
    "parameters",
    [
        {"kv_cache_onboard_blocks": "false"},
        {"llm_args": '{"kv_cache_config": {"onboard_blocks": false}}'},
    ],
)
def test_rejects_a_parameter_that_the_version_lacks(parameters: dict[str, str]) -> None:
    plan_repository("mine", engine(), ServingOptions(parameters=parameters))
    newer = dataclasses.replace(engine(), details="1.3.0")
    with pytest.raises(BadInput, match="does not support the requested value of kv_cache"):
        plan_repository("mine", newer, ServingOptions(parameters=parameters))


def test_rejects_a_length_beyond_the_context() -> None:
    with pytest.raises(BadInput, match="exceeds the context length"):
        plan_repository("mine", engine(), ServingOptions(max_seq_len=8192))


@pytest.mark.parametrize("value", ["[1]", "no", "{"])
def test_rejects_llm_args_that_are_not_a_json_object(value: str) -> None:
    with pytest.raises(BadInput, match="llm_args"):
        plan_repository("mine", engine(), ServingOptions(parameters={"llm_args": value}))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    checkpoint = tmp_path / "hf"
    checkpoint.mkdir()
    write_tokenizer(checkpoint)
    of = dataclasses.replace(engine(), path=checkpoint)
    write_repository(plan_repository("mine", of, ServingOptions()), tmp_path / "repository")
    return tmp_path / "repository"


def test_new_repository_is_valid(written: Path) -> None:
    assert validate_repository(open_repository(written)) == []


def test_parameters_can_be_set_and_cleared(written: Path) -> None:
    repository = open_repository(written)
    requested = {"kv_cache_free_gpu_mem_fraction": "0.5", "guided_decoding_backend": ""}
    texts = apply_changes(repository, plan_changes(repository, requested))
    assert (
        '"kv_cache_free_gpu_mem_fraction" value: { string_value: "0.5" }' in texts["tensorrt_llm"]
    )
    origins = {each.parameter.name: each.origin for each in list_settings(repository)}
    assert origins["llm_args"] == "engine"


def test_validation_finds_limits_beyond_the_checkpoint(written: Path) -> None:
    folder = written.parent / "hf"
    (folder / "config.json").write_text('{"vocab_size": 7, "max_position_embeddings": 2048}')
    found = [each.what for each in validate_repository(open_repository(written))]
    assert "max_seq_len is 4096, but the engine was built for 2048" in found
    assert "vocab_size is 49152, but the engine's vocabulary has 7 tokens" in found


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ('{"kv_cache_config": 5}', "kv_cache_config is not a JSON object"),
        ('{"max_beam_width": "x"}', "max_beam_width has the invalid value 'x'"),
    ],
)
def test_invalid_argument_is_rejected(arguments: str, why: str) -> None:
    options = ServingOptions(parameters={"llm_args": arguments, "enable_kv_cache_reuse": "true"})
    with pytest.raises(BadInput, match="engine arguments are not valid") as raised:
        plan_repository("mine", engine(), options)
    assert why in raised.value.why
