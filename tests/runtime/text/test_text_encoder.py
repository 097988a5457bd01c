"""Test the token ids for text requests, encoded by the text model or by `preprocessing`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes import triton_utils as pb_utils
from tests.fakes.triton_utils import InferenceRequest, InferenceResponse, Request
from trtllm_serve_cli.runtime.engine import InvalidRequest
from trtllm_serve_cli.runtime.text.tokenizer import load_tokenizer
from trtllm_serve_cli.runtime.triton.parameters import Parameters

ASK = {"ask_preprocessing": "true"}


def _args(folder: Path, **values: str) -> dict[str, str]:
    values = {"tokenizer_dir": str(folder), "preprocessing_model_name": "mine", **values}
    config = {"parameters": {name: {"string_value": value} for name, value in values.items()}}
    return {"model_config": json.dumps(config), "model_name": "ensemble", "model_version": "1"}


def _encode(folder: Path, parameters: dict[str, str], **tensors: Any) -> dict[str, Any]:
    from trtllm_serve_cli.runtime.text.text_encoder import load_encoder

    values = {"text_input": [[b"hi"]], "max_tokens": [[5]], **tensors}
    arrays = {
        name: np.array(each, dtype=object if name.endswith(("input", "words")) else None)
        for name, each in values.items()
    }
    encode = load_encoder(Parameters(_args(folder, **parameters)), load_tokenizer(folder))
    return {name: each.tolist() for name, each in encode(arrays.get).items()}


@pytest.fixture
def preprocessing(
    tmp_path: Path, triton_utils: Any, transformers: Any, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Serve `preprocessing` and return the names of the called models."""
    from trtllm_serve_cli.runtime.models.preprocessing import TritonPythonModel

    model, model_names = TritonPythonModel(), list[str]()
    model.initialize(_args(tmp_path))

    def execute(request: InferenceRequest) -> InferenceResponse:
        model_names.append(request.model_name)
        (response,) = model.execute([Request(request.inputs)])
        return response

    monkeypatch.setattr(pb_utils.InferenceRequest, "exec", execute)
    return model_names


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"text_input": [[b"a"], [b"longer"]], "max_tokens": [[1], [2]]},
        {"stop_words": [[b"no", b"x"]], "bad_words": [[b"bad"]], "end_id": [[7]], "pad_id": [[8]]},
        {"embedding_bias_words": [[b"b"]], "embedding_bias_weights": [[0.5]]},
    ],
    ids=str,
)
def test_both_ways_return_the_same_inputs(
    preprocessing: list[str], tmp_path: Path, tensors: dict[str, Any]
) -> None:
    in_place = _encode(tmp_path, {}, **tensors)
    assert preprocessing == []
    assert _encode(tmp_path, ASK, **tensors) == in_place
    assert preprocessing == ["mine"]


def test_a_prompt_becomes_the_inputs_of_the_engine(
    preprocessing: list[str], tmp_path: Path
) -> None:
    assert _encode(tmp_path, {"add_special_tokens": "false"}) == {
        "input_ids": [[104, 105]],
        "input_lengths": [[2]],
        "request_output_len": [[5]],
        "stop_words_list": [[[0], [-1]]],
        "bad_words_list": [[[0], [-1]]],
        "end_id": [[2]],
        "pad_id": [[2]],
    }


@pytest.mark.parametrize("parameters", [{}, ASK], ids=str)
def test_both_ways_reject_invalid_text(
    preprocessing: list[str], tmp_path: Path, parameters: dict[str, str]
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        _encode(tmp_path, parameters, text_input=[[b"\xff"]])
    assert str(raised.value) == "text_input (QUERY) is not valid UTF-8 at byte 0; send UTF-8 text"


def test_retries_when_another_request_of_the_batch_is_malformed(
    tmp_path: Path, triton_utils: Any, transformers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "incomplete string data for inference input 'QUERY', expecting string of length 9"
    responses = [InferenceResponse(error=pb_utils.TritonError(each)) for each in (why, why, "over")]
    monkeypatch.setattr(pb_utils.InferenceRequest, "exec", lambda self: responses.pop(0))
    with pytest.raises(InvalidRequest, match=r"^over$"):
        _encode(tmp_path, ASK)
    assert responses == []
