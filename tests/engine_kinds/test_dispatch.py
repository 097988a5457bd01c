"""The plan of each engine kind for the same request."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.samples.builds import GGUF
from tests.samples.configs import GEMMA_3_4B, MIXTRAL_8X7B, QWEN_1_5_MOE_A2_7B
from tests.samples.tensorrt_engines import write_tokenizer
from trtllm_serve_cli.build.build_plan import BuildPlan, BuildRequest, Toolchain
from trtllm_serve_cli.build.container import ContainerOptions, ContainerTools
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.containers.container import ContainerHost
from trtllm_serve_cli.engine_kinds.dispatch import (
    describe_checkpoint,
    find_tools,
    plan_build,
)
from trtllm_serve_cli.engine_kinds.pytorch.llm_arguments import plan_llm_arguments
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.gpus import load_gpu
from trtllm_serve_cli.sources.checkpoint import Checkpoint

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "float16",
}
TOOLS = Toolchain(
    "/venv/bin/python",
    trtllm_version="0.11.0",
    gpu=load_gpu("h100"),
    gpu_name="h100-sxm",
    num_gpus=4,
)
OLD = Toolchain("/venv/bin/python", trtllm_version="0.11.0")
NEW = Toolchain("/venv/bin/python", trtllm_version="1.2.0")


@pytest.fixture
def llama(tmp_path: Path) -> Checkpoint:
    folder = write_tokenizer(tmp_path / "llama")
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return Checkpoint(folder, "hf", "hf:a/llama@c", "c", "LlamaForCausalLM", 13_000_000_000)


def plan(checkpoint: Checkpoint, kind: str, tools: Toolchain = TOOLS, **options) -> BuildPlan:
    request = BuildRequest("mine", checkpoint, Path("/e"), kind, EngineOptions(**options))
    return plan_build(request, tools)


def test_plan_of_a_tensorrt_engine(llama: Checkpoint) -> None:
    planned = plan(llama, "tensorrt", tp=2)
    assert [step.command[:2] for step in planned.steps] == [
        ("python3", "/tensorrtllm_backend/tensorrt_llm/examples/llama/convert_checkpoint.py"),
        ("trtllm-build", "--checkpoint_dir"),
        ("/venv/bin/python", "-m"),
    ]
    engine_facts = json.loads(planned.steps[-1].command[-1])
    assert planned.steps[-1].command[2:-1] == (
        "trtllm_serve_cli.engine_kinds.describe_step", "{work}",
        "--checkpoint", str(llama.path), "--engine",
    )  # fmt: skip
    assert engine_facts == {
        "kind": "tensorrt", "model_name": "mine", "source": "hf:a/llama@c",
        "architecture": "LlamaForCausalLM", "weights": "auto", "fingerprint": planned.fingerprint,
    }  # fmt: skip
    assert planned.facts["options"] == {"tp": 2}
    assert planned.facts["tools"] == {"tensorrt_llm": "0.11.0"}
    assert planned.facts["gpu"] == "h100-sxm"
    assert planned.estimated_bytes == sum(step.estimated_bytes for step in planned.steps) > 13e9


def test_fingerprint_depends_on_version_gpu_and_options(llama: Checkpoint) -> None:
    plans = [
        plan(llama, "tensorrt"),
        plan(llama, "tensorrt", OLD),
        plan(llama, "tensorrt", Toolchain("p", trtllm_version="0.12.0")),
        plan(llama, "tensorrt", max_batch_size=8),
    ]
    assert len({each.fingerprint for each in plans}) == len(plans)


def test_fingerprint_depends_on_the_files_of_adapters(llama: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    plans = []
    for text in ("one", "other"):
        (tmp_path / "adapter" / "adapter_model.safetensors").write_text(text)
        plans.append(plan(llama, "tensorrt", lora_dir=(str(tmp_path / "adapter"),)))
    assert plans[0].fingerprint != plans[1].fingerprint


@pytest.mark.parametrize("kind", ["pytorch", "vllm"])
def test_kinds_that_serve_checkpoints_have_no_build_steps(llama: Checkpoint, kind: str) -> None:
    planned = plan(llama, kind, NEW)
    assert (planned.steps, planned.engine_dir, planned.kind) == ((), llama.path, kind)


def test_options_of_the_pytorch_kind_become_arguments(llama: Checkpoint) -> None:
    options = EngineOptions(tp=2, max_batch_size=8)
    arguments = plan_llm_arguments(options, "1.2.0")
    planned = plan(llama, "pytorch", NEW, tp=2, max_batch_size=8)
    assert planned.facts["llm_arguments"] == arguments
    assert planned.describe().splitlines()[0] == "  tensor_parallel_size: 2"
    request = BuildRequest("mine", llama, Path("/e"), "pytorch", options)
    engine = describe_checkpoint(request, NEW)
    assert (engine.kind, engine.path, engine.llm_arguments) == ("pytorch", llama.path, arguments)


@pytest.mark.parametrize(
    ("kind", "tools", "options", "message"),
    [
        ("tensorrt", TOOLS, {"tp": 8}, "needs 8 GPUs (tp x pp), but the number of available"),
        ("pytorch", TOOLS, {"tp": 4, "pp": 2}, "but the number of available GPUs is 4."),
        ("tensorrt", OLD, {"tp": 3}, "--tp 3"),
        ("pytorch", NEW, {"tp": 3}, "--tp 3"),
        ("vllm", NEW, {"tp": 3}, "--tp 3"),
        (
            "vllm",
            NEW,
            {"max_input_len": 9},
            "--engine vllm does not support --max-input-len.",
        ),
        ("tensorrt", Toolchain("p"), {}, "The TensorRT-LLM version for the build is not known."),
        ("tensorrt", Toolchain("p", trtllm_version="1.3.0"), {}, "does not build engines"),
    ],
)
def test_plan_rejects_impossible_requests(
    llama: Checkpoint, kind: str, tools: Toolchain, options: dict[str, int], message: str
) -> None:
    with pytest.raises(BadInput) as raised:
        plan(llama, kind, tools, **options)
    assert message in raised.value.what


def test_tensorrt_engine_is_not_built_from_nvidias_quantized_checkpoints(llama: Checkpoint) -> None:
    facts = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (llama.path / "hf_quant_config.json").write_text(json.dumps(facts))
    with pytest.raises(BadInput, match="already quantized \\(fp8\\)"):
        plan(llama, "tensorrt")


@pytest.mark.parametrize("kind", ["pytorch", "vllm"])
def test_plan_divides_the_language_model_of_a_multimodal_model(
    llama: Checkpoint, kind: str
) -> None:
    (llama.path / "config.json").write_text(json.dumps(GEMMA_3_4B))
    with pytest.raises(BadInput, match="--tp 3") as raised:
        plan(llama, kind, NEW, tp=3)
    assert raised.value.why == "the number of attention heads, 8, is not divisible by 3"


@pytest.mark.parametrize("kind", ["pytorch", "vllm"])
def test_multimodal_model_may_omit_the_default_sizes_of_its_language_model(
    llama: Checkpoint, kind: str
) -> None:
    # The language model in the config.json of llava-hf/llava-1.5-7b-hf.
    text = {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064}
    config = {"architectures": ["LlavaForConditionalGeneration"], "text_config": text}
    (llama.path / "config.json").write_text(json.dumps(config))
    assert plan(llama, kind, NEW, tp=2).facts["llm_arguments"]["tensor_parallel_size"] == 2
    (llama.path / "config.json").write_text(json.dumps(text))
    with pytest.raises(BadInput, match="num_hidden_layers"):
        plan(llama, kind, NEW, tp=2)


def test_vllm_divides_experts_into_groups_of_different_sizes(llama: Checkpoint) -> None:
    (llama.path / "config.json").write_text(json.dumps(QWEN_1_5_MOE_A2_7B))
    assert plan(llama, "vllm", NEW, tp=8, moe_ep=8).facts["llm_arguments"] == {
        "tensor_parallel_size": 8, "pipeline_parallel_size": 1, "enable_expert_parallel": True,
    }  # fmt: skip
    with pytest.raises(BadInput, match="--moe-ep 8"):
        plan(llama, "pytorch", NEW, tp=8, moe_ep=8)
    (llama.path / "config.json").write_text(json.dumps(MIXTRAL_8X7B))
    with pytest.raises(BadInput, match="--moe-ep 16"):
        plan(llama, "vllm", NEW, tp=16, moe_ep=16)


@pytest.mark.parametrize("kind", ["tensorrt", "pytorch", "vllm"])
def test_rejects_a_gguf_file_for_gpu_kinds(kind: str) -> None:
    with pytest.raises(BadInput, match="requires a Hugging Face checkpoint"):
        plan(GGUF, kind)


def test_requested_version_replaces_the_installed_version() -> None:
    assert find_tools("24.07").trtllm_version == "0.11.0"
    with pytest.raises(BadInput, match="'newest' is not a valid TensorRT-LLM version"):
        find_tools("newest")


@pytest.mark.parametrize(
    ("ids", "gpu", "count"),
    [((), "h200", 2), (("1",), "a100-80gb", 1), (("GPU-0a",), "h200", 1), (("7",), "h200", 1)],
)
def test_container_is_planned_for_the_chosen_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: tuple[str, ...], gpu: str, count: int
) -> None:
    program = tmp_path / "nvidia-smi"
    shown = "0, NVIDIA H200, 143771, Disabled\n1, NVIDIA A100-SXM4-80GB, 81920, Disabled"
    program.write_text(f"#!/bin/sh\necho '{shown}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    tools = find_tools("25.03", ContainerOptions(gpus=ids))
    assert (tools.gpu_name, tools.num_gpus) == (gpu, count)


@pytest.mark.parametrize(("dataset", "is_mounted"), [("/texts", True), ("cnn_dailymail", False)])
def test_container_mounts_a_folder_for_calibration(
    llama: Checkpoint, dataset: str, is_mounted: bool
) -> None:
    host = ContainerHost("docker", "27.1.1", has_gpu_toolkit=True)
    container = ContainerTools(host, "img", ("all",), Path("/app/examples"), (), Path("/cache"))
    tools = dataclasses.replace(TOOLS, trtllm_version="0.18.0", container=container)
    planned = plan(llama, "tensorrt", tools, quantization="fp8", calib_dataset=dataset)
    assert planned.container is not None
    assert (Path(dataset) in planned.container.setup.folders) == is_mounted
