"""Files with the logits of a response."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from trtllm_serve_cli.cli.infer.infer_options import InferOptions
from trtllm_serve_cli.cli.infer.logits import check_usage, list_requested, write_logits
from trtllm_serve_cli.client.generate import Completion
from trtllm_serve_cli.errors import BadInput, RequestFailed

LOGITS = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_only_logits_with_a_file_are_requested(tmp_path: Path) -> None:
    assert list_requested(InferOptions()) == []
    options = InferOptions(generation_logits=tmp_path / "g.npy")
    assert list_requested(options) == ["return_generation_logits"]


@pytest.mark.parametrize(
    ("options", "has_prompt", "message"),
    [
        ({"interface": "http"}, True, "requires gRPC"),
        ({"batch": Path("prompts.txt")}, False, "requires a single prompt"),
        ({}, False, "requires a single prompt"),
    ],
)
def test_logits_need_one_prompt_over_grpc(
    options: dict[str, Any], has_prompt: bool, message: str
) -> None:
    chosen = InferOptions(context_logits=Path("c.npy"), **options)
    with pytest.raises(typer.BadParameter, match=message) as raised:
        check_usage(chosen, has_prompt=has_prompt)
    assert raised.value.param_hint == "--context-logits"


def test_writes_the_array(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.npy"
    completion = Completion((), 1.0, logits={"context_logits": LOGITS})
    write_logits(completion, InferOptions(context_logits=path))
    assert np.array_equal(np.load(path), LOGITS)
    assert capsys.readouterr().err == f"context logits: [2, 3] float32 in {path}\n"
    assert list(tmp_path.iterdir()) == [path]


def test_missing_logits_are_an_error(tmp_path: Path) -> None:
    options = InferOptions(context_logits=tmp_path / "c.npy")
    with pytest.raises(RequestFailed, match="not contain context logits") as raised:
        write_logits(Completion((), 1.0), options)
    assert "gather_context_logits=true" in raised.value.next_step
    assert list(tmp_path.iterdir()) == []


def test_unwritable_file_is_an_error(tmp_path: Path) -> None:
    options = InferOptions(context_logits=tmp_path / "missing" / "c.npy")
    with pytest.raises(BadInput, match=r"c\.npy cannot be written") as raised:
        write_logits(Completion((), 1.0, logits={"context_logits": LOGITS}), options)
    assert raised.value.why == "No such file or directory"


def test_folder_that_is_a_file_is_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    options = InferOptions(context_logits=tmp_path / "file" / "c.npy")
    with pytest.raises(BadInput, match="cannot be written") as raised:
        write_logits(Completion((), 1.0, logits={"context_logits": LOGITS}), options)
    assert raised.value.why == "Not a directory"


def test_incomplete_file_is_explained_and_removed(tmp_path: Path) -> None:
    """NumPy does not report why it wrote only a part of the array."""
    logits = np.zeros(10_000, np.float32)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(BadInput, match="cannot be written") as raised:
            write_logits(
                Completion((), 1.0, logits={"context_logits": logits}),
                InferOptions(context_logits=tmp_path / "c.npy"),
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.why.startswith("the disk may be full: 10000 requested and")
    assert list(tmp_path.iterdir()) == []
