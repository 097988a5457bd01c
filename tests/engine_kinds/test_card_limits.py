"""The default limits of engines that serve a checkpoint on this machine's GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.samples import configs
from tests.samples.tensorrt_engines import write_tokenizer
from trtllm_serve_cli.build.build_plan import BuildRequest, Toolchain
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.engine_kinds.dispatch import describe_checkpoint
from trtllm_serve_cli.engine_kinds.registry import find_kind
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.sizing.gpus import load_gpu
from trtllm_serve_cli.sources.checkpoint import Checkpoint

CONFIG = {**configs.LLAMA_2_7B, "architectures": ["LlamaForCausalLM"]}


def values_on(
    folder: Path, kind: str, gpu: str | None, config: dict[str, Any] = CONFIG, **options: Any
) -> tuple[str, str]:
    """Return the parameters max_num_seqs and max_num_tokens of an import on a machine."""
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(config))
    source = Checkpoint(folder, "hf", f"local:{folder}", None, "LlamaForCausalLM", 1_000_000)
    request = BuildRequest("m", source, folder, kind, EngineOptions(**options))
    tools = Toolchain("python3", trtllm_version="1.2.0", gpu=load_gpu(gpu) if gpu else None)
    engine = describe_checkpoint(request, tools)
    limits = {"max_batch_size", "max_seq_len", "max_num_tokens"} & set(options)
    serving = ServingOptions(**{name: options[name] for name in limits})
    values = find_kind(kind).serving.plan_values(engine, serving, {})
    return values["max_num_seqs"], values["max_num_tokens"]


@pytest.mark.parametrize(
    ("kind", "gpu", "options", "values"),
    [
        ("vllm", None, {}, ("256", "8192")),
        ("pytorch", None, {}, ("256", "8192")),
        ("vllm", "h200", {}, ("1024", "16384")),
        ("pytorch", "h200", {}, ("1024", "16384")),
        ("vllm", "a100", {}, ("512", "4096")),
        # Without chunked prefill, a smaller limit would reject long prompts.
        ("pytorch", "a100", {}, ("512", "8192")),
        ("vllm", "h200", {"max_batch_size": 8}, ("8", "16384")),
        ("pytorch", "h200", {"max_batch_size": 8}, ("8", "16384")),
        # vLLM requires at least as many tokens as sequences.
        ("vllm", "h200", {"max_num_tokens": 300}, ("300", "300")),
        ("vllm", None, {"max_num_tokens": 128}, ("128", "128")),
        ("vllm", "l4", {"max_batch_size": 4096}, ("4096", "4096")),
        ("pytorch", "h200", {"max_beam_width": 2}, ("256", "8192")),
        # The GPU does not support bfloat16, so the estimate is impossible.
        ("vllm", "v100", {"dtype": "bfloat16"}, ("256", "8192")),
    ],
)
def test_limits_follow_from_the_card(
    tmp_path: Path, kind: str, gpu: str | None, options: dict[str, Any], values: tuple[str, str]
) -> None:
    assert values_on(tmp_path, kind, gpu, **options) == values


def test_unknown_family_has_the_defaults_without_a_card(tmp_path: Path) -> None:
    config = {**CONFIG, "model_type": "new", "architectures": ["NewForCausalLM"]}
    assert values_on(tmp_path, "vllm", "h200", config) == ("256", "8192")
