"""The folder of the converters."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from trtllm_serve_cli.build.tensorrt.toolkit import find_examples_dir


@pytest.mark.parametrize(
    ("version", "folder"),
    [("0.16.0", "/tensorrtllm_backend/tensorrt_llm/examples"), ("0.17.0", "/app/examples")],
)
def test_default_is_the_folder_in_the_container(version: str, folder: str) -> None:
    assert find_examples_dir(Version(version), lambda path: False) == Path(folder)


def test_existing_checkout_is_used() -> None:
    script = Path("/tensorrtllm_backend/tensorrt_llm/examples/quantization/quantize.py")
    found = find_examples_dir(Version("0.17.0"), lambda path: path == script)
    assert found == Path("/tensorrtllm_backend/tensorrt_llm/examples")
