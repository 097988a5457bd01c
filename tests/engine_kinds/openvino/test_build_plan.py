"""The plan of a build for OpenVINO GenAI, and its commands."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.samples.builds import GGUF, HF
from trtllm_serve_cli.build.build_plan import BuildPlan, BuildRequest, Toolchain
from trtllm_serve_cli.build.build_step import BuildStep
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.engine_kinds.dispatch import plan_build
from trtllm_serve_cli.errors import BadInput

TOOLS = Toolchain(python="/venv/bin/python")
ENGINE_DIR = Path("/engines/mine")


def plan(checkpoint=GGUF, *, versions=None, trusted=False, **options) -> BuildPlan:
    request = BuildRequest(
        "mine",
        checkpoint,
        ENGINE_DIR,
        "openvino",
        options=EngineOptions(**options),
        trust_remote_code=trusted,
    )
    return plan_build(request, dataclasses.replace(TOOLS, versions=versions or {}))


def fingerprint(checkpoint=GGUF, **options) -> str:
    return plan(checkpoint, **options).fingerprint


def describe(checkpoint: str, source: str, architecture: str, weights: str, mark: str) -> BuildStep:
    engine = {
        "kind": "openvino", "model_name": "mine", "source": source,
        "architecture": architecture, "weights": weights, "fingerprint": mark,
    }  # fmt: skip
    return BuildStep(
        "Describe the engine",
        (
            "/venv/bin/python", "-m", "trtllm_serve_cli.engine_kinds.describe_step", "{work}",
            "--checkpoint", checkpoint, "--engine", json.dumps(engine),
        ),
        outputs=("{work}/engine.json",),
        is_local=True,
    )  # fmt: skip


OPENVINO_FILES = tuple(
    f"{{work}}/openvino_{name}.xml" for name in ("model", "tokenizer", "detokenizer")
)


def facts(checkpoint, weights: str) -> dict[str, Any]:
    return {
        "plan": 4,
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
    assert plan() == BuildPlan(
        model_name="mine",
        kind="openvino",
        weights="as in the GGUF",
        checkpoint=GGUF,
        engine_dir=ENGINE_DIR,
        steps=(
            BuildStep(
                "Convert the GGUF file to OpenVINO IR",
                ("/venv/bin/python", "-m", "trtllm_serve_cli.engine_kinds.openvino.gguf_step",
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
    planned = plan(HF, quantization=quantization)
    export = BuildStep(
        f"Export the checkpoint to OpenVINO IR with {title}",
        (
            "/venv/bin/python", "-m", "optimum.commands.optimum_cli", "export", "openvino",
            "--model", "/models/hf", "--task", "text-generation-with-past",
            "--weight-format", weight_format, "{work}",
        ),
        outputs=OPENVINO_FILES,
    )  # fmt: skip
    mark = planned.fingerprint
    last = describe("/models/hf", "local:/models/hf", "LlamaForCausalLM", weights, mark)
    assert planned == BuildPlan(
        "mine", "openvino", weights, HF, ENGINE_DIR, (export, last), mark, estimated_bytes,
        facts(HF, weights), planned.requires,
    )  # fmt: skip
    assert [module.name for module in planned.requires] == ["optimum.intel"]


def test_remote_code_runs_only_if_trusted() -> None:
    commands = [plan(HF, trusted=trusted).steps[0].command for trusted in (False, True)]
    assert commands[1] == (*commands[0][:-1], "--trust-remote-code", "{work}")


def test_rejects_quantization_of_a_gguf_file() -> None:
    with pytest.raises(BadInput, match="--quantization int8 cannot be used with a GGUF file"):
        plan(quantization="int8")


def test_rejects_gpu_options() -> None:
    with pytest.raises(BadInput) as raised:
        plan(HF, tp=2)
    assert raised.value.what == "--engine openvino does not support --tp."
    with pytest.raises(
        BadInput, match="The openvino engine kind does not support --quantization fp8"
    ):
        plan(HF, quantization="fp8")


def test_fingerprint_does_not_depend_on_serving_limits() -> None:
    assert fingerprint(HF, max_batch_size=8) == fingerprint(HF)


def test_rejects_an_unknown_gguf_architecture() -> None:
    checkpoint = dataclasses.replace(GGUF, architecture="mamba")
    with pytest.raises(BadInput) as raised:
        plan(checkpoint)
    assert str(raised.value) == (
        "The openvino engine kind does not support GGUF files with the 'mamba' architecture.\n"
        "Why: the supported architectures are llama, qwen2, qwen3\n"
        "Next: import the model's Hugging Face checkpoint with -s hf:ORG/NAME instead"
    )


def test_fingerprint_depends_on_source_options_and_tools() -> None:
    other_source = dataclasses.replace(HF, source="hf:a/b@c")
    larger = dataclasses.replace(HF, size_bytes=2)
    marks = [
        fingerprint(),
        fingerprint(HF),
        fingerprint(other_source),
        fingerprint(larger),
        fingerprint(HF, quantization="int4"),
        fingerprint(HF, quantization="none"),
        fingerprint(HF, versions={"nncf": "1"}),
        fingerprint(HF, versions={"nncf": "2"}),
    ]
    assert len(set(marks)) == len(marks)


def test_fingerprint_does_not_depend_on_name_folder_and_unused_tools() -> None:
    elsewhere = plan_build(
        BuildRequest("other", HF, Path("/else"), "openvino"), Toolchain("python3")
    )
    unused_tool = fingerprint(HF, versions={"openvino-genai": "1"})
    marks = {
        fingerprint(HF), fingerprint(HF, quantization="int8"), elsewhere.fingerprint, unused_tool,
    }  # fmt: skip
    assert len(marks) == 1


def test_plan_shows_commands_that_a_shell_accepts() -> None:
    spaced = dataclasses.replace(GGUF, path=Path("/my models/mine.gguf"))
    lines = plan(spaced).describe().splitlines()
    assert lines[:4] == [
        "Build an openvino engine for mine (as in the GGUF weights) from gguf:/models/mine.gguf",
        "into /engines/mine (about 1.1 MB):",
        "  Convert the GGUF file to OpenVINO IR:",
        "    /venv/bin/python -m trtllm_serve_cli.engine_kinds.openvino.gguf_step "
        "'/my models/mine.gguf' /engines/mine",
    ]


def test_plan_as_json() -> None:
    planned = plan()
    shown = planned.as_dict()
    steps = shown.pop("steps")
    assert shown == {
        "model": "mine",
        "engine": "openvino",
        "weights": "as in the GGUF",
        "source": "gguf:/models/mine.gguf",
        "checkpoint": "/models/mine.gguf",
        "engine_dir": "/engines/mine",
        "fingerprint": planned.fingerprint,
        "facts": facts(GGUF, "as in the GGUF"),
        "estimated_bytes": 1_050_000,
    }
    assert [step["command"][3] for step in steps] == ["/models/mine.gguf", "/engines/mine"]
