"""Text to token ids; in the fake tokenizer, each character is a token, after a 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes.triton_utils import Request, TruncatedTensor


@pytest.fixture
def model(tmp_path: Path, triton_utils: Any, transformers: Any) -> Any:
    from trtllm_serve_cli.runtime.models.preprocessing import TritonPythonModel

    return _initialized(TritonPythonModel(), tokenizer_dir=str(tmp_path))


def _initialized(model: Any, **parameters: str) -> Any:
    values = {name: {"string_value": value} for name, value in parameters.items()}
    config = json.dumps({"parameters": values})
    model.initialize({"model_config": config, "model_name": "preprocessing", "model_version": "1"})
    return model


def _request(**tensors: Any) -> Request:
    return Request({"QUERY": _strings([b"hi"]), "REQUEST_OUTPUT_LEN": [[5]], **tensors})


def _strings(*rows: list[bytes]) -> Any:
    return np.array(rows, dtype=object)


def _respond(model: Any, request: Request) -> Any:
    (response,) = model.execute([request])
    return response.content()


def test_encodes_a_prompt_to_upstreams_tensors(model: Any) -> None:
    assert _respond(model, _request()) == {
        "INPUT_ID": [[1, 104, 105]],
        "REQUEST_INPUT_LEN": [[3]],
        "DECODER_INPUT_ID": [[0]],
        "REQUEST_DECODER_INPUT_LEN": [[1]],
        "STOP_WORDS_IDS": [[[0], [-1]]],
        "BAD_WORDS_IDS": [[[0], [-1]]],
        "REQUEST_OUTPUT_LEN": [[5]],
        "OUT_END_ID": [[2]],
        "OUT_PAD_ID": [[2]],
    }


def test_returns_only_the_requested_outputs(model: Any) -> None:
    tensors = {"QUERY": _strings([b"hi"]), "REQUEST_OUTPUT_LEN": [[5]]}
    request = Request(tensors, requested_outputs=["OUT_END_ID", "REQUEST_INPUT_LEN"])
    assert _respond(model, request) == {"REQUEST_INPUT_LEN": [[3]], "OUT_END_ID": [[2]]}


def test_pads_the_shorter_prompts_of_a_batch(model: Any) -> None:
    query = _strings([b"hi"], ["é".encode()])
    outputs = _respond(model, _request(QUERY=query, REQUEST_OUTPUT_LEN=[[5], [6]]))
    assert {name: outputs[name] for name in ("INPUT_ID", "REQUEST_INPUT_LEN", "OUT_END_ID")} == {
        "INPUT_ID": [[1, 104, 105], [1, 233, 2]],
        "REQUEST_INPUT_LEN": [[3], [2]],
        "OUT_END_ID": [[2], [2]],
    }


def test_rejects_a_request_without_rows(model: Any) -> None:
    none = np.zeros((0, 1), dtype=object)
    outputs = _respond(model, _request(QUERY=none, REQUEST_OUTPUT_LEN=none))
    assert outputs == "text_input (QUERY) has no rows; send a prompt"


def test_encodes_words_without_special_tokens_and_skips_empty_ones(model: Any) -> None:
    words = {"STOP_WORDS_DICT": _strings([b"a", b"", b"bc"]), "BAD_WORDS_DICT": _strings([b"d"])}
    outputs = _respond(model, _request(**words))
    assert (outputs["STOP_WORDS_IDS"], outputs["BAD_WORDS_IDS"]) == (
        [[[97, 98, 99], [1, 3, -1]]],
        [[[100], [1]]],
    )


def test_forwards_the_end_and_pad_ids_of_the_request(model: Any) -> None:
    outputs = _respond(model, _request(END_ID=[[7]], PAD_ID=[[8]]))
    assert (outputs["OUT_END_ID"], outputs["OUT_PAD_ID"]) == ([[7]], [[8]])


def test_special_tokens_can_be_switched_off(model: Any, tmp_path: Path) -> None:
    _initialized(model, tokenizer_dir=str(tmp_path), add_special_tokens="false")
    assert _respond(model, _request())["INPUT_ID"] == [[104, 105]]


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({"QUERY": _strings([b""])}, "text_input (QUERY) is empty; send a prompt"),
        (
            {"QUERY": _strings([b"a\xff"])},
            "text_input (QUERY) is not valid UTF-8 at byte 1; send UTF-8 text",
        ),
        (
            {"STOP_WORDS_DICT": _strings([b"\x80"])},
            "stop_words (STOP_WORDS_DICT) is not valid UTF-8 at byte 0; send UTF-8 text",
        ),
    ],
)
def test_rejects_invalid_text(model: Any, tensors: Any, why: str) -> None:
    assert _respond(model, _request(**tensors)) == why


def test_rejects_a_missing_prompt(model: Any) -> None:
    why = "text_input (QUERY) and max_tokens (REQUEST_OUTPUT_LEN) are required; send both"
    assert _respond(model, Request({"REQUEST_OUTPUT_LEN": [[5]]})) == why


def test_invalid_request_does_not_affect_its_batch(model: Any) -> None:
    responses = model.execute([_request(QUERY=_strings([b""])), _request()])
    assert [type(response.content()) for response in responses] == [str, dict]


def test_malformed_tensor_does_not_affect_its_batch(model: Any) -> None:
    malformed = _request()
    malformed.tensors["QUERY"] = TruncatedTensor("QUERY")
    why, outputs = (each.content() for each in model.execute([malformed, _request()]))
    assert why.startswith("QUERY is malformed: ") and outputs["REQUEST_INPUT_LEN"] == [[3]]


@pytest.mark.parametrize(
    ("tensors", "name"),
    [
        ({"STOP_WORDS_DICT": _strings([b"a"], [b"b"], [b"c"])}, "stop_words (STOP_WORDS_DICT)"),
        (
            {
                "EMBEDDING_BIAS_WORDS": _strings([b"a"], [b"b"], [b"c"]),
                "EMBEDDING_BIAS_WEIGHTS": [[1.0], [1.0], [1.0]],
            },
            "embedding_bias_words",
        ),
    ],
)
def test_words_without_a_row_for_each_prompt_are_rejected(
    model: Any, tensors: dict[str, Any], name: str
) -> None:
    (response,) = model.execute([_request(QUERY=_strings([b"hi"], [b"ho"]), **tensors)])
    assert f"{name} has 3 rows, but the request has 2 prompts" in response.error().message()


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        (
            {"EMBEDDING_BIAS_WORDS": _strings([b"a", b"b"])},
            "embedding_bias_weights is missing; send both embedding_bias_words and "
            "embedding_bias_weights",
        ),
        (
            {"EMBEDDING_BIAS_WEIGHTS": [[1.0]]},
            "embedding_bias_words is missing; send both embedding_bias_words and "
            "embedding_bias_weights",
        ),
        (
            {
                "EMBEDDING_BIAS_WORDS": _strings([b"a", b"b"]),
                "EMBEDDING_BIAS_WEIGHTS": [[1.0]],
            },
            "embedding_bias_words has shape [1, 2], but embedding_bias_weights has shape [1, 1]; "
            "send one weight for each word",
        ),
    ],
)
def test_bias_words_without_their_weights_are_rejected(
    model: Any, tensors: dict[str, Any], why: str
) -> None:
    (response,) = model.execute([_request(**tensors)])
    assert response.error().message() == why


def test_texts_that_cannot_fit_are_rejected_before_they_are_encoded(
    tmp_path: Path, triton_utils: Any, transformers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trtllm_serve_cli.runtime.models.preprocessing import TritonPythonModel

    model = _initialized(TritonPythonModel(), tokenizer_dir=str(tmp_path), max_seq_len="4")
    encoded: list[str] = []

    def encode(tokenizer: Any, text: str, **_: Any) -> list[int]:
        encoded.append(text)
        return [1]

    monkeypatch.setattr(transformers.Characters, "encode", encode)
    for tensors, why in (
        (
            {"QUERY": _strings([b"a" * 600])},
            "has 600 characters, but the model's context length of 4 tokens",
        ),
        ({"QUERY": _strings(*[[b"a" * 500]] * 9000)}, "is 4500000 bytes long"),
        ({"STOP_WORDS_DICT": _strings([b"a"] * 5000)}, "has 5000 words in its longest row"),
        (
            {
                "EMBEDDING_BIAS_WORDS": _strings([b"a"] * 5000),
                "EMBEDDING_BIAS_WEIGHTS": [[1.0] * 5000],
            },
            "embedding_bias_words has 5000 words in its longest row",
        ),
    ):
        (response,) = model.execute([_request(**tensors)])
        assert why in response.error().message()
    assert encoded == ["hi", "hi"]  # the prompts of the requests with too many words


def test_damaged_tokenizer_is_reported(model: Any, tmp_path: Path) -> None:
    (tmp_path / "openvino_tokenizer.xml").write_text("<")
    why = _respond(model, _request())
    assert why.startswith(f"the files in {tmp_path} cannot be loaded as a tokenizer: ")


@pytest.mark.parametrize(
    "parameters", [{}, {"add_special_tokens": "maybe"}, {"max_seq_len": "many"}], ids=str
)
def test_invalid_parameter_fails_the_load(
    model: Any, tmp_path: Path, parameters: dict[str, str]
) -> None:
    folder = {"tokenizer_dir": str(tmp_path)} if parameters else {}
    with pytest.raises(ValueError, match=next(iter(parameters), "tokenizer_dir")):
        _initialized(model, **folder, **parameters)
