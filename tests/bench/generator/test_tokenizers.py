"""Test the search for a tokenizer that all targets use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.triton.server import FakeTriton
from trtllm_serve_cli.bench.generator.tokenizers import find_tokenizer_folder
from trtllm_serve_cli.bench.model.served_model import Target
from trtllm_serve_cli.errors import BadInput

Serve = Callable[[FakeTriton], str]


def _find(serve: Serve, **folders: Path) -> Path:
    """Find the tokenizer for models with `preprocessing` models that specify these folders."""
    parameters = {
        f"{name}_preprocessing": {"tokenizer_dir": str(folder)} for name, folder in folders.items()
    }
    address = serve(FakeTriton(parameters_of=parameters))
    return find_tokenizer_folder([Target(address, f"{name}_tensorrt_llm") for name in folders])


def test_models_with_the_same_tokenizer_folder_share_it(serve: Serve, tmp_path: Path) -> None:
    assert _find(serve, a=tmp_path, b=tmp_path) == tmp_path


def test_rejects_models_with_different_tokenizers(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with pytest.raises(BadInput, match="The models use different tokenizer folders") as refused:
        _find(serve, a=tmp_path, b=tmp_path / "b")
    assert f"uses {tmp_path}; b_tensorrt_llm at " in refused.value.why
    assert "--tokenizer DIR" in refused.value.next_step


def test_rejects_a_tokenizer_folder_of_another_machine(serve: Serve, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="tokenizer is unknown") as refused:
        _find(serve, a=tmp_path / "elsewhere")
    assert "is not a local folder" in refused.value.why


def test_rejects_a_preprocessing_model_without_a_tokenizer_folder(serve: Serve) -> None:
    address = serve(FakeTriton(parameters_of={"a_preprocessing": {}}))
    with pytest.raises(BadInput, match="tokenizer is unknown") as refused:
        find_tokenizer_folder([Target(address, "a_tensorrt_llm")])
    assert refused.value.why == ("the configuration of a_preprocessing does not set tokenizer_dir")
