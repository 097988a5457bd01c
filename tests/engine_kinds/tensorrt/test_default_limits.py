"""The default limits of TensorRT engines for a GPU."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.samples import configs
from tests.samples.tensorrt_engines import write_tokenizer
from trtllm_serve_cli.build.build_plan import BuildPlan, BuildRequest, Toolchain
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.engine_kinds.dispatch import plan_build
from trtllm_serve_cli.sizing.gpus import load_gpu
from trtllm_serve_cli.sources.checkpoint import Checkpoint

CONFIG = {**configs.LLAMA_2_7B, "architectures": ["LlamaForCausalLM"]}
TOOLS = Toolchain("python3", trtllm_version="0.16.0", gpu=load_gpu("a100"), gpu_name="a100-80gb")


def plan(
    folder: Path, config: dict[str, Any] = CONFIG, tools: Toolchain = TOOLS, **options: Any
) -> BuildPlan:
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(config))
    architecture = config["architectures"][0]
    source = Checkpoint(folder, "hf", "hf:a/m@c", "c", architecture, 1_000_000)
    request = BuildRequest("m", source, folder, "tensorrt", EngineOptions(**options))
    return plan_build(request, tools)


def limits_of(planned: BuildPlan) -> tuple[str | None, str | None]:
    """Return the values of --max_batch_size and --max_num_tokens in the build's commands."""
    words = [word for step in planned.steps for word in step.command]
    names = ("--max_batch_size", "--max_num_tokens")
    batch_size, num_tokens = (
        words[words.index(name) + 1] if name in words else None for name in names
    )
    return batch_size, num_tokens


@pytest.mark.parametrize(
    ("version", "gpu", "options", "limits"),
    [
        ("0.16.0", "h200", {}, ("1024", "16384")),
        # Without chunked context, a smaller limit would reject long prompts.
        ("0.16.0", "a100", {}, ("512", "8192")),
        ("0.16.0", "a100", {"max_input_len": 12000, "max_seq_len": 16000}, ("512", "12000")),
        ("0.16.0", "a100", {"max_batch_size": 8}, ("8", "8192")),
        ("0.16.0", "a100", {"max_batch_size": 1}, ("1", "4096")),
        ("0.16.0", "a100", {"max_num_tokens": 300}, ("300", "300")),
        ("0.16.0", "a100", {"max_batch_size": 4, "max_num_tokens": 9000}, ("4", "9000")),
        ("0.10.0", "a100", {}, ("512", "8192")),
        # Before 0.11, a prompt has at most 1024 tokens by default.
        ("0.10.0", "a100", {"max_batch_size": 4}, ("4", "4096")),
        ("0.10.0", "a100", {"max_batch_size": 4, "max_input_len": 99}, ("4", "396")),
    ],
)
def test_limits_follow_from_the_card(
    tmp_path: Path,
    version: str,
    gpu: str,
    options: dict[str, Any],
    limits: tuple[str | None, str | None],
) -> None:
    tools = dataclasses.replace(TOOLS, trtllm_version=version, gpu=load_gpu(gpu))
    assert limits_of(plan(tmp_path, tools=tools, **options)) == limits


@pytest.mark.parametrize(
    "options",
    [
        {"max_beam_width": 2},
        {"speculative_decoding_mode": "draft_tokens_external", "max_draft_len": 10,
         "use_paged_context_fmha": True},
        {"paged_kv_cache": False},
        {"remove_input_padding": False},
        {"gather_context_logits": True},
        {"flags": {"build_config": "/build.json"}},
    ],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_defaults_of_trtllm_build_remain(tmp_path: Path, options: dict[str, Any]) -> None:
    assert limits_of(plan(tmp_path, **options)) == (None, None)


@pytest.mark.parametrize(
    ("tools", "config"),
    [
        (dataclasses.replace(TOOLS, gpu=None), CONFIG),
        (dataclasses.replace(TOOLS, trtllm_version="0.7.1"), CONFIG),
        (TOOLS, {**CONFIG, **configs.LLAMA_3_1_405B, "architectures": ["LlamaForCausalLM"]}),
    ],
    ids=["unknown GPU", "build.py", "too large"],
)
def test_engines_without_an_estimate_have_no_limits(
    tmp_path: Path, tools: Toolchain, config: dict[str, Any]
) -> None:
    assert limits_of(plan(tmp_path, config, tools)) == (None, None)


def test_limits_do_not_cause_engines_to_be_built_again(tmp_path: Path) -> None:
    planned = plan(tmp_path)
    assert planned.facts["options"] == {}
    without_estimate = dataclasses.replace(TOOLS, gpu=None)
    assert plan(tmp_path, tools=without_estimate).fingerprint == planned.fingerprint
