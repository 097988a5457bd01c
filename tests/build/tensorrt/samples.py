"""Sample models, and helpers that plan engines of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

from tests.build.tensorrt.programs import parse_arguments
from tests.samples import configs, older_configs
from trtllm_serve_cli.build.build_step import BuildStep
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.build.tensorrt.tensorrt_plan import plan_tensorrt
from trtllm_serve_cli.build.tensorrt.toolkit import Toolkit
from trtllm_serve_cli.build.tensorrt.versions import load_containers
from trtllm_serve_cli.sizing.gpus import load_gpu
from trtllm_serve_cli.sizing.shape import ModelShape, parse_shape

MODELS = {
    "gpt2-medium": parse_shape(configs.GPT_2_MEDIUM),
    "llama-2-7b": parse_shape(configs.LLAMA_2_7B),
    "llama-2-70b": parse_shape(configs.LLAMA_2_70B),
    "llama-3.1-8b": parse_shape(configs.LLAMA_3_1_8B),
    "mixtral-8x22b": parse_shape(configs.MIXTRAL_8X22B),
    "qwen-2.5-7b": parse_shape(configs.QWEN_2_5_7B),
    "qwen-3-30b-a3b": parse_shape(configs.QWEN_3_30B_A3B),
    "gemma-2-9b": parse_shape(configs.GEMMA_2_9B),
    "falcon-7b": parse_shape(configs.FALCON_7B),
    "phi-3-mini": parse_shape(configs.PHI_3_MINI),
    "opt-125m": parse_shape(configs.OPT_125M),
    "baichuan-13b": parse_shape(older_configs.BAICHUAN_13B),
    "bloom-7b": parse_shape(configs.BLOOM_7B1),
    "chatglm3-6b": parse_shape(configs.CHATGLM_3_6B),
    "dbrx": parse_shape(older_configs.DBRX),
    "deepseek-moe-16b": parse_shape(older_configs.DEEPSEEK_MOE_16B),
    "exaone-7.8b": parse_shape(older_configs.EXAONE_3_8B),
    "falcon-40b-rw": parse_shape(older_configs.FALCON_40B_RW),
    "gpt-neox-20b": parse_shape(configs.GPT_NEOX_20B),
    "internlm-7b": parse_shape(older_configs.INTERNLM_7B),
    "jais-13b": parse_shape(older_configs.JAIS_13B),
    "minitron-4b": parse_shape(older_configs.MINITRON_4B),
    "phi-3-small": parse_shape(older_configs.PHI_3_SMALL),
    "phi-3.5-moe": parse_shape(older_configs.PHI_3_5_MOE),
    "qwen-7b": parse_shape(older_configs.QWEN_7B),
    "skywork-13b": parse_shape(older_configs.SKYWORK_13B),
}
# Every release that has trtllm-build and is in a container.
VERSIONS = sorted(
    {each.trtllm for each in load_containers() if Version("0.8") <= each.trtllm < Version("1.3")}
)
CHECKPOINT = Path("/models/my model")
# Families of converters whose folder has another name.
_FOLDERS = {"glm-4-9b": "chatglm"}


def plan(
    model: str | ModelShape,
    version: str,
    gpu: str | None = None,
    published_name: str = "",
    **options: Any,
) -> tuple[BuildStep, ...]:
    shape = MODELS[model] if isinstance(model, str) else model
    toolkit = Toolkit(Version(version), Path("/examples"), "/venv/bin/python")
    return plan_tensorrt(
        shape,
        CHECKPOINT,
        EngineOptions(**options),
        toolkit,
        load_gpu(gpu) if gpu else None,
        published_name=published_name,
    )


def options_in(command: Sequence[str]) -> dict[str, str]:
    """Return each flag of a command with its values, joined by spaces."""
    found: dict[str, list[str]] = {}
    for word in command:
        if word.startswith("--"):
            found[word] = []
        elif found:
            found[list(found)[-1]].append(word)
    return {flag: " ".join(values) for flag, values in found.items()}


def check_step(step: BuildStep, version: str | Version) -> None:
    """Raise `ParseError` if the program of this version rejects the step's command."""
    program, *arguments = step.command
    if program != "trtllm-build":
        script = Path(arguments.pop(0))
        folder = _FOLDERS.get(script.parent.name, script.parent.name)
        program = script.name if script.name == "quantize.py" else f"{folder}/{script.name}"
    parse_arguments(program, Version(str(version)), arguments)
