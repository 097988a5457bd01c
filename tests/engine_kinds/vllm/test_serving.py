"""Repositories for vLLM in an engine worker."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tests.samples.builds import ENGINE
from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.choices import Layout
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.engine_kinds.vllm.engine_arguments import plan_vllm_arguments
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.render import render_files
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository
from trtllm_serve_cli.runtime.engines.kinds import find_kind
from trtllm_serve_cli.runtime.triton.parameters import Parameters


def engine(**options: Any) -> Engine:
    return dataclasses.replace(
        ENGINE,
        path=Path("/models/hf"),
        kind="vllm",
        max_position_embeddings=4096,
        llm_arguments=plan_vllm_arguments(EngineOptions(**options)),
    )


def worker_config(of: Engine, **options: Any) -> dict[str, Any]:
    """Return the worker configuration that the Python model derives from its `config.pbtxt`."""
    files = render_files(plan_repository("mine", of, ServingOptions(**options)))
    config = text_format.Parse(files["tensorrt_llm/config.pbtxt"], model_config_pb2.ModelConfig())
    entries = {
        name: {"string_value": value.string_value} for name, value in config.parameters.items()
    }
    args = {"model_config": json.dumps({"parameters": entries}), "model_name": "tensorrt_llm"}
    worker_config = find_kind("vllm").worker_config
    assert worker_config is not None
    return worker_config(Parameters({**args, "model_version": "1"}))


def test_worker_gets_engine_arguments() -> None:
    parameters = {
        "kv_cache_free_gpu_mem_fraction": "0.8",
        "enable_kv_cache_reuse": "false",
        "guided_decoding_backend": "xgrammar",
        "gpu_device_ids": "0,1",
        "vllm_args": '{"load_format": "dummy", "seed": 3}',
    }
    config = worker_config(
        engine(tp=2, dtype="bfloat16"),
        max_batch_size=512, max_num_tokens=16384, max_seq_len=2048, parameters=parameters,
    )  # fmt: skip
    assert config == {
        "llm": {
            "model": "/models/hf",
            "tokenizer": "/models/hf",
            "max_num_seqs": 512,
            "max_model_len": 2048,
            "max_num_batched_tokens": 16384,
            "enable_chunked_prefill": True,
            "gpu_memory_utilization": 0.8,
            "enable_prefix_caching": False,
            "structured_outputs_config": {"backend": "xgrammar"},
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 1,
            "dtype": "bfloat16",
            "load_format": "dummy",
            "seed": 3,
            "max_loras": 4,
            "max_lora_rank": 64,
        },
        "max_batch_size": 512,
        "max_queue_size": 0,
        "max_seq_len": 2048,
        "vocab_size": ENGINE.vocab_size,
        "gpu_device_ids": ["0", "1"],
        "lora_prefetch_dir": "",
        "lora_cache_max_adapter_size": 64,
        "lora_cache_host_memory_bytes": 1 << 30,
        "batch_invariant": False,
    }


def test_batch_invariance_is_a_setting_of_the_worker() -> None:
    assert worker_config(engine(), parameters={"batch_invariant": "true"})["batch_invariant"]


def test_limit_that_is_not_set_fits_the_other() -> None:
    by_parameter = worker_config(engine(), parameters={"max_num_seqs": "10000"})["llm"]
    by_argument = worker_config(
        engine(), parameters={"vllm_args": '{"max_num_batched_tokens": 64}'}
    )["llm"]
    limits = [
        (each["max_num_seqs"], each["max_num_batched_tokens"])
        for each in (by_parameter, by_argument)
    ]
    assert limits == [(10000, 10000), (64, 64)]


@pytest.mark.parametrize("layout", ["inflight", "vllm"])
def test_rejects_fewer_tokens_than_sequences(layout: Layout) -> None:
    options = ServingOptions(layout=layout, max_batch_size=512, max_num_tokens=256)
    with pytest.raises(BadInput) as raised:
        plan_repository("mine", engine(), options)
    assert str(raised.value) == (
        "The limit of 512 sequences in a batch exceeds the limit of 256 tokens per step.\n"
        "Why: vLLM requires at least one token per step for each sequence\n"
        "Next: set --max-batch-size to 256 or less, or --max-num-tokens to 512 or more"
    )


def test_lora_rank_is_that_of_the_engine() -> None:
    config = worker_config(engine(max_lora_rank=16))
    assert (config["llm"]["max_lora_rank"], config["lora_cache_max_adapter_size"]) == (16, 16)
    assert config["llm"]["enable_lora"]


@pytest.mark.parametrize(
    "parameters",
    [{"lora_cache_max_adapter_size": "48"}, {"vllm_args": '{"max_lora_rank": 48}'}],
    ids=lambda parameters: next(iter(parameters)),
)
def test_rejects_a_lora_rank_without_kernels(parameters: dict[str, str]) -> None:
    options = ServingOptions(parameters=parameters)
    with pytest.raises(BadInput, match="does not support lora_cache_max_adapter_size 48"):
        plan_repository("mine", engine(max_lora_rank=16), options)


def test_lora_rank_is_not_checked_without_adapters() -> None:
    parameters = {"lora_cache_max_adapter_size": "48"}
    planned = plan_repository("mine", engine(), ServingOptions(parameters=parameters))
    assert parameters.items() <= planned.parameters.items()


def test_rejects_the_llmapi_layout() -> None:
    with pytest.raises(BadInput, match="llmapi layout does not support the vllm engine kind"):
        plan_repository("mine", engine(), ServingOptions(layout="llmapi"))
