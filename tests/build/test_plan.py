"""The commands of a build, compared whole."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.build.samples import GGUF, HF
from trtllm_serve_cli.build import BuildOptions, BuildPlan, BuildStep, plan_build
from trtllm_serve_cli.errors import BadInput

PYTHON = BuildOptions(python="/venv/bin/python")
ENGINE_DIR = Path("/engines/mine")


def fingerprint(checkpoint=GGUF, **options) -> str:
    return plan_build(
        "mine", checkpoint, ENGINE_DIR, dataclasses.replace(PYTHON, **options)
    ).fingerprint


def describe(checkpoint: str, source: str, architecture: str, weights: str, mark: str) -> BuildStep:
    return BuildStep(
        "Describe the engine",
        (
            "/venv/bin/python", "-m", "trtllm_serve_cli.build.describe_openvino", "{work}",
            "--checkpoint", checkpoint, "--model-name", "mine", "--source", source,
            "--architecture", architecture, "--weights", weights, "--fingerprint", mark,
        ),
        outputs=("{work}/engine.json",),
    )  # fmt: skip


OPENVINO_FILES = tuple(
    f"{{work}}/openvino_{name}.xml" for name in ("model", "tokenizer", "detokenizer")
)


def facts(checkpoint, weights: str) -> dict[str, Any]:
    return {
        "plan": 3,
        "kind": "openvino",
        "weights": weights,
        "source": checkpoint.source,
        "size_bytes": 1_000_000,
        "modified_ns": 0,
        "tools": {},
    }


def test_plan_for_a_gguf_file() -> None:
    mark = fingerprint()
    path, source = "/models/mine.gguf", "gguf:/models/mine.gguf"
    assert plan_build("mine", GGUF, ENGINE_DIR, PYTHON) == BuildPlan(
        model_name="mine",
        kind="openvino",
        weights="as in the GGUF",
        checkpoint=GGUF,
        engine_dir=ENGINE_DIR,
        steps=(
            BuildStep(
                "Convert the GGUF file to OpenVINO's format",
                ("/venv/bin/python", "-m", "trtllm_serve_cli.build.gguf_to_openvino",
                 path, "{work}"),
                outputs=OPENVINO_FILES,
            ),
            describe(path, source, "llama", "as in the GGUF", mark),
        ),
        fingerprint=mark,
        estimated_bytes=1_050_000,
        facts=facts(GGUF, "as in the GGUF"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("quantization", "weights", "weight_format", "title", "estimated_bytes"),
    [
        (None, "int8", "int8", "int8 weights", 550_000),
        ("int4", "int4", "int4", "int4 weights", 350_000),
        ("none", "none", "fp16", "16-bit weights", 1_050_000),
    ],
)
def test_plan_for_a_hugging_face_checkpoint(
    quantization, weights: str, weight_format: str, title: str, estimated_bytes: int
) -> None:
    options = dataclasses.replace(PYTHON, quantization=quantization)
    plan = plan_build("mine", HF, ENGINE_DIR, options)
    export = BuildStep(
        f"Export the checkpoint to OpenVINO's format with {title}",
        (
            "/venv/bin/python", "-m", "optimum.commands.optimum_cli", "export", "openvino",
            "--model", "/models/hf", "--task", "text-generation-with-past",
            "--weight-format", weight_format, "{work}",
        ),
        outputs=OPENVINO_FILES,
    )  # fmt: skip
    mark = plan.fingerprint
    last = describe("/models/hf", "local:/models/hf", "LlamaForCausalLM", weights, mark)
    assert plan == BuildPlan(
        "mine", "openvino", weights, HF, ENGINE_DIR, (export, last), mark, estimated_bytes,
        facts(HF, weights),
    )  # fmt: skip


def test_remote_code_is_run_only_when_trusted() -> None:
    trusting = dataclasses.replace(PYTHON, trust_remote_code=True)
    commands = [
        plan_build("mine", HF, ENGINE_DIR, each).steps[0].command for each in (PYTHON, trusting)
    ]
    assert commands[1] == (*commands[0][:-1], "--trust-remote-code", "{work}")


def test_quantization_does_not_go_with_a_gguf_file() -> None:
    options = dataclasses.replace(PYTHON, quantization="int8")
    with pytest.raises(BadInput, match="--quantization int8 does not go with a GGUF file"):
        plan_build("mine", GGUF, ENGINE_DIR, options)


def test_gguf_architecture_that_cannot_be_read() -> None:
    checkpoint = dataclasses.replace(GGUF, architecture="mamba")
    with pytest.raises(BadInput) as raised:
        plan_build("mine", checkpoint, ENGINE_DIR, PYTHON)
    assert str(raised.value) == (
        "The engine kind openvino cannot read a GGUF file of the architecture 'mamba'.\n"
        "Why: OpenVINO GenAI reads llama, qwen2, qwen3\n"
        "Next: import the model's Hugging Face checkpoint instead: -s hf:ORG/NAME"
    )


def test_fingerprint_is_that_of_source_and_options() -> None:
    other_source = dataclasses.replace(HF, source="hf:a/b@c")
    larger = dataclasses.replace(HF, size_bytes=2)
    marks = [
        fingerprint(),
        fingerprint(HF),
        fingerprint(other_source),
        fingerprint(larger),
        fingerprint(HF, quantization="int4"),
        fingerprint(HF, quantization="none"),
        fingerprint(HF, tools={"nncf": "1"}),
        fingerprint(HF, tools={"nncf": "2"}),
    ]
    assert len(set(marks)) == len(marks)


def test_fingerprint_is_the_same_for_the_same_engine() -> None:
    elsewhere = plan_build("other", HF, Path("/else"), BuildOptions(python="python3"))
    unused_tool = fingerprint(HF, tools={"openvino-genai": "1"})
    marks = {
        fingerprint(HF), fingerprint(HF, quantization="int8"), elsewhere.fingerprint, unused_tool,
    }  # fmt: skip
    assert len(marks) == 1


def test_plan_shows_commands_ready_to_paste() -> None:
    spaced = dataclasses.replace(GGUF, path=Path("/my models/mine.gguf"))
    lines = plan_build("mine", spaced, ENGINE_DIR, PYTHON).describe().splitlines()
    assert lines[:4] == [
        "Build an openvino engine for mine (as in the GGUF weights) from gguf:/models/mine.gguf",
        "into /engines/mine (about 1.1 MB):",
        "  Convert the GGUF file to OpenVINO's format:",
        "    /venv/bin/python -m trtllm_serve_cli.build.gguf_to_openvino "
        "'/my models/mine.gguf' /engines/mine",
    ]


def test_plan_as_json_has_the_commands() -> None:
    plan = plan_build("mine", GGUF, ENGINE_DIR, PYTHON)
    shown = plan.as_dict()
    steps = shown.pop("steps")
    assert shown == {
        "model": "mine",
        "engine": "openvino",
        "weights": "as in the GGUF",
        "source": "gguf:/models/mine.gguf",
        "checkpoint": "/models/mine.gguf",
        "engine_dir": "/engines/mine",
        "fingerprint": plan.fingerprint,
        "facts": facts(GGUF, "as in the GGUF"),
        "estimated_bytes": 1_050_000,
    }
    assert [step["command"][-1] for step in steps] == ["/engines/mine", plan.fingerprint]
