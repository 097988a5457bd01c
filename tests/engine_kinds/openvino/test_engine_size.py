"""The sizes of an OpenVINO engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.samples.checkpoints import write_files
from trtllm_serve_cli.engine_kinds.cpu_memory import EngineSize
from trtllm_serve_cli.engine_kinds.dispatch import read_details


def state(name: str, shape: str) -> str:
    return (
        '<layer id="2" name="r" type="ReadValue" version="opset6">\n'
        f'<data variable_id="{name}" variable_type="f32" variable_shape="{shape}" />\n</layer>\n'
    )


def test_each_state_of_the_model_counts_once(tmp_path: Path) -> None:
    keys, values = state("0.key", "?,3,?,64"), state("0.value", "?,3,?,32")
    model = f"<net>{keys}{values}{keys}</net>".encode()
    write_files(tmp_path, {"openvino_model.xml": model, "openvino_model.bin": bytes(100)})
    assert read_details("openvino", tmp_path) == EngineSize(100, kv_heads=6, kv_values=288)


@pytest.mark.parametrize("model", [b"<net></net>", state("0", "?,?,3,64").encode(), b"\xff"])
def test_engine_without_a_known_cache_has_no_size(tmp_path: Path, model: bytes) -> None:
    write_files(tmp_path, {"openvino_model.xml": model, "openvino_model.bin": b""})
    assert read_details("openvino", tmp_path) is None


def test_engine_without_files_has_no_size(tmp_path: Path) -> None:
    assert read_details("openvino", tmp_path) is None
