"""The lines about serving that `tllm import` prints."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.samples.builds import ENGINE
from tests.samples.tensorrt_engines import tensorrt_engine
from trtllm_serve_cli.engine_kinds.cpu_memory import CpuHost
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.importing.import_summary import describe_serving, describe_stages
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository
from trtllm_serve_cli.sizing.gpus import load_gpu

HOST = CpuHost(1 << 34, num_threads=4)


def lines(
    kind: str, gpu: str | None, quantization: str | None = None, weights: str = "bfloat16"
) -> list[str]:
    engine = dataclasses.replace(ENGINE, kind=kind, weights=weights, llm_arguments={})
    repository = plan_repository("m", engine, ServingOptions())
    return list(describe_serving(repository, quantization, load_gpu(gpu) if gpu else None, HOST))


def test_limits_are_stated_with_the_card() -> None:
    assert lines("openvino", None) == [
        "Limits: 64 sequences, 256 tokens per step, 32,768 tokens in the KV cache, 4 threads"
    ]
    assert lines("vllm", "a100") == ["Limits on a100-80gb: 256 sequences, 8,192 tokens per step"]


def test_limits_of_a_built_engine_are_those_of_its_build(tmp_path: Path) -> None:
    repository = plan_repository("m", tensorrt_engine(tmp_path), ServingOptions(max_batch_size=4))
    (limits, *_) = describe_serving(repository, None, load_gpu("a100"), HOST)
    assert limits == "Limits: 16 sequences, 8,192 tokens per step"


def test_engine_of_an_old_version_has_no_known_limits(tmp_path: Path) -> None:
    engine = tensorrt_engine(tmp_path, max_num_tokens=None)
    repository = plan_repository("m", engine, ServingOptions())
    assert list(describe_serving(repository, None, None, HOST)) == []


def test_fp8_is_offered_on_cards_that_support_it() -> None:
    (_, offer) = lines("vllm", "h200")
    assert "--quantization fp8" in offer and "`tllm plan -m m`" in offer


@pytest.mark.parametrize(
    ("kind", "gpu", "quantization", "weights"),
    [
        ("vllm", None, None, "bfloat16"),
        ("vllm", "a100", None, "bfloat16"),
        ("vllm", "h200", "fp8", "bfloat16"),
        ("vllm", "h200", "none", "bfloat16"),
        ("vllm", "h200", None, "fp8"),
        # The LLM API does not convert the weights of a checkpoint.
        ("pytorch", "h200", None, "bfloat16"),
    ],
)
def test_fp8_is_not_offered_where_it_is_of_no_use(
    kind: str, gpu: str | None, quantization: str | None, weights: str
) -> None:
    assert not any("fp8" in line for line in lines(kind, gpu, quantization, weights))


def test_durations_of_stages_add_up() -> None:
    stages = {"checkpoint": 12.06, "engine": 28.9, "model repository": 0.34}
    assert describe_stages(stages) == (
        "41.3 s (checkpoint 12.1 s, engine 28.9 s, model repository 0.3 s)"
    )
