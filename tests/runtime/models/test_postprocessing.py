"""Token ids to text; in the fake tokenizer, each id is a code point."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.triton_utils import Request, TruncatedTensor


@pytest.fixture
def model(tmp_path: Path, triton_utils: Any, transformers: Any) -> Any:
    from trtllm_serve_cli.runtime.models.postprocessing import TritonPythonModel

    config = {"parameters": {"tokenizer_dir": {"string_value": str(tmp_path)}}}
    args = {"model_config": json.dumps(config), "model_name": "it", "model_version": "1"}
    model = TritonPythonModel()
    model.initialize(args)
    return model


def _respond(model: Any, tokens: Any, lengths: Any) -> Any:
    (response,) = model.execute([Request({"TOKENS_BATCH": tokens, "SEQUENCE_LENGTH": lengths})])
    return response.content()


def test_decodes_each_sequence_up_to_its_length(model: Any) -> None:
    output = _respond(model, [[[104, 105, 0], [0x4F60, 0, 0]], [[0, 0, 0]] * 2], [[2, 1], [0, -1]])
    assert output == {"OUTPUT": [b"hi", "你".encode(), b"", b""]}


def test_malformed_tensor_does_not_affect_its_batch(model: Any) -> None:
    malformed, valid = (Request({"TOKENS_BATCH": [[[104]]]}) for _ in range(2))
    malformed.tensors["TOKENS_BATCH"] = TruncatedTensor("TOKENS_BATCH")
    why, output = (each.content() for each in model.execute([malformed, valid]))
    assert why.startswith("TOKENS_BATCH is malformed: ") and output == {"OUTPUT": [b"h"]}


def test_skips_special_tokens(model: Any) -> None:
    assert _respond(model, [[[1, 104, 2]]], [[3]]) == {"OUTPUT": [b"h"]}


@pytest.mark.parametrize(
    ("lengths", "shape"), [([[4]], [1, 1]), ([[1, 1]], [1, 2]), ([1], [1])], ids=str
)
def test_rejects_lengths_that_do_not_fit(model: Any, lengths: Any, shape: Any) -> None:
    assert _respond(model, [[[104, 105, 0]]], lengths) == (
        f"SEQUENCE_LENGTH (shape {shape}) does not match TOKENS_BATCH (shape [1, 1, 3]); send one "
        "length per sequence, and no length greater than the last dimension of TOKENS_BATCH"
    )


def test_rejects_negative_tokens_except_padding(model: Any) -> None:
    assert _respond(model, [[[104, -1, -1]]], [[1]]) == {"OUTPUT": [b"h"]}
    assert _respond(model, [[[104, -7, -1]]], [[2]]) == (
        "TOKENS_BATCH contains -7, which is not a token id; send non-negative ids, and pad a "
        "sequence only after its first SEQUENCE_LENGTH tokens"
    )


def test_negative_tokens_are_padding_in_requests_without_lengths(model: Any) -> None:
    (response,) = model.execute([Request({"TOKENS_BATCH": [[[104, 105, -1]], [[104, 105, 106]]]})])
    assert response.content() == {"OUTPUT": [b"hi", b"hij"]}


def test_damaged_tokenizer_is_reported(model: Any, tmp_path: Path) -> None:
    (tmp_path / "openvino_tokenizer.xml").write_text("<")
    why = _respond(model, [[[104]]], [[1]])
    assert why.startswith(f"the files in {tmp_path} cannot be loaded as a tokenizer: ")
