"""The last step of a build, run as a build runs it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

from tests.samples.tensorrt_engines import write_engine, write_tokenizer
from trtllm_serve_cli.build.build_plan import BuildRequest, Toolchain
from trtllm_serve_cli.engine_kinds.describe_step import plan_describe_step
from trtllm_serve_cli.engine_kinds.dispatch import load_engine
from trtllm_serve_cli.engine_kinds.tensorrt.built_engine import describe_source
from trtllm_serve_cli.sources.checkpoint import Checkpoint


def test_step_copies_the_tokenizer_and_writes_engine_json(tmp_path: Path) -> None:
    checkpoint = write_tokenizer(tmp_path / "checkpoint")
    for name in ("config.json", "model.safetensors.index.json", "model.safetensors"):
        (checkpoint / name).write_text("{}")
    engine = write_engine(tmp_path / "engine")
    source = Checkpoint(checkpoint, "hf", "hf:a/b@c", "c", "LlamaForCausalLM", 1)
    step = plan_describe_step(
        BuildRequest("mine", source, engine, "tensorrt"),
        Toolchain(sys.executable),
        title="Describe",
        weights="auto",
        fingerprint="f1",
    )
    subprocess.run(step.command_in(engine), check=True)
    copied = {path.name for path in (engine / "tokenizer").iterdir()}
    left_out = {"model.safetensors.index.json", "model.safetensors"}
    assert copied == {path.name for path in checkpoint.iterdir()} - left_out
    expected = describe_source("mine", engine, checkpoint, "hf:a/b@c")
    assert load_engine(engine) == dataclasses.replace(expected, fingerprint="f1")
    assert json.loads((engine / "engine.json").read_text())["kind"] == "tensorrt"
