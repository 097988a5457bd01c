"""The last step of a TensorRT build, run as the build runs it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

from tests.build.tensorrt_files import write_engine, write_tokenizer
from trtllm_serve_cli.build.engine import read_engine
from trtllm_serve_cli.engine_kinds.served_checkpoint import describe_tensorrt


def test_engine_gets_its_tokenizer_and_says_what_it_is(tmp_path: Path) -> None:
    checkpoint = write_tokenizer(tmp_path / "checkpoint")
    for name in ("config.json", "model.safetensors.index.json", "model.safetensors"):
        (checkpoint / name).write_text("{}")
    engine = write_engine(tmp_path / "engine")
    subprocess.run(
        (
            sys.executable, "-m", "trtllm_serve_cli.engine_kinds.tensorrt.describe_step",
            str(engine), "--checkpoint", str(checkpoint), "--model-name", "mine",
            "--source", "hf:a/b@c",
            "--fingerprint", "f1",
        ),
        check=True,
    )  # fmt: skip
    copied = {path.name for path in (engine / "tokenizer").iterdir()}
    left_out = {"model.safetensors.index.json", "model.safetensors"}
    assert copied == {path.name for path in checkpoint.iterdir()} - left_out
    expected = describe_tensorrt("mine", engine, checkpoint, "hf:a/b@c")
    assert read_engine(engine) == dataclasses.replace(expected, fingerprint="f1")
    assert json.loads((engine / "engine.json").read_text())["kind"] == "tensorrt"
