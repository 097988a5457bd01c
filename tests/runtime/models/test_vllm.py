"""The model of the vllm layout on a real worker with the scripted engine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes import scripted_worker, tokenizer, triton_utils
from tests.fakes.triton_utils import Request
from trtllm_serve_cli.runtime.triton.model_json import render_model_json

# Characters are tokens. The first one is the command of the scripted engine, a special token, which
# responses do not contain.
COUNT, HANG = "\x01a", "\x02a"
TRUE = [True]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("python")
    python = folder / "python3"
    python.write_text(
        f'#!/bin/sh\nshift 2\nexec {sys.executable} {scripted_worker.__file__} "$@"\n'
    )
    python.chmod(0o755)
    sizes = ("max_beam_width", "max_num_seqs", "max_num_tokens", "max_seq_len")
    sizes += ("max_tokens_in_paged_kv_cache", "vocab_size")
    arguments = {
        **dict.fromkeys(sizes, "64"),
        "gpt_model_path": "/no/engine",
        "tokenizer_dir": str(folder),
        "add_special_tokens": "false",
        "engine_python": str(python),
    }
    (folder / "1").mkdir()
    (folder / "1" / "model.json").write_text(render_model_json(arguments))
    config = {
        "input": [{"name": "text_input"}, {"name": "image"}],
        "model_transaction_policy": {"decoupled": True},
        "parameters": {"engine_kind": {"string_value": "openvino"}},
    }
    args = {
        "model_config": json.dumps(config),
        "model_repository": str(folder),
        "model_name": "mine",
        "model_version": "1",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton_python_backend_utils", triton_utils)
        patch.setitem(sys.modules, "transformers", tokenizer)
        from trtllm_serve_cli.runtime.models.vllm import TritonPythonModel

        model = TritonPythonModel()
        model.initialize(args)
        try:
            yield model
        finally:
            model.finalize()


def generate(model: Any, prompt: str = COUNT, sampling: Any = None, **tensors: Any) -> list[Any]:
    inputs = {"text_input": [prompt.encode()], **tensors}
    text = json.dumps({"max_tokens": 2, **(sampling or {})})
    request = Request({"sampling_parameters": [text.encode()], **inputs})
    model.execute([request])
    return list(request.sender.responses())


def test_response_is_the_prompt_and_the_generated_text(model: Any) -> None:
    assert generate(model) == [{"text_output": [b"\x01a\x0a\x0b"]}]


def test_prompt_can_be_excluded(model: Any) -> None:
    answers = generate(model, exclude_input_in_output=TRUE)
    assert answers == [{"text_output": [b"\x0a\x0b"]}]


def test_streamed_responses_do_not_contain_the_prompt(model: Any) -> None:
    answers = generate(model, stream=TRUE, return_finish_reason=TRUE, return_num_output_tokens=TRUE)
    assert b"".join(each["text_output"][0] for each in answers) == b"\x0a\x0b"
    assert [each["finish_reason"] for each in answers] == [
        *([[b"None"]] * (len(answers) - 1)),
        [b"length"],
    ]
    assert sum(each["num_output_tokens"][0] for each in answers) == 2


def test_streamed_response_with_the_prompt_is_rejected(model: Any) -> None:
    (why,) = generate(model, stream=TRUE, exclude_input_in_output=[False])
    assert why == (
        "exclude_input_in_output is false, but a streamed response cannot contain the prompt; "
        "omit exclude_input_in_output, or omit stream"
    )


def test_additional_outputs_are_those_of_the_backend(model: Any) -> None:
    (answer,) = generate(
        model,
        sampling={"temperature": "0", "logprobs": 1},
        return_finish_reason=TRUE,
        return_cumulative_logprob=TRUE,
        return_logprobs=TRUE,
        return_num_input_tokens=TRUE,
        return_num_output_tokens=TRUE,
    )
    log_probs = json.loads(answer.pop("logprobs")[0])
    assert [list(step) for step in log_probs] == [["10"], ["11"]]
    assert [step.popitem()[1] for step in log_probs] == [
        {"logprob": -0.5, "rank": 1, "decoded_token": text} for text in ("\x0a", "\x0b")
    ]
    assert answer == {
        "text_output": [b"\x01a\x0a\x0b"],
        "finish_reason": [b"length"],
        "cumulative_logprob": [-1.0],
        "num_input_tokens": [2],
        "num_output_tokens": [2],
    }


def test_log_probs_are_null_unless_sampling_parameters_request_them(model: Any) -> None:
    (answer,) = generate(model, return_logprobs=TRUE)
    assert answer["logprobs"] == [b"null"]


def test_several_sequences_are_in_one_response(model: Any) -> None:
    (answer,) = generate(model, sampling={"n": 2}, return_num_output_tokens=TRUE)
    assert answer == {
        "text_output": [b"\x01a\x0a\x0b", b"\x01a\x14\x15"],
        "num_output_tokens": [2, 2],
    }


def test_request_parameters_replace_the_missing_input(model: Any) -> None:
    request = Request({"text_input": [COUNT.encode()]}, parameters={"max_tokens": 1})
    model.execute([request])
    assert request.sender.responses() == [{"text_output": [b"\x01a\x0a"]}]


def test_max_tokens_defaults_to_that_of_vllm(model: Any) -> None:
    request = Request({"text_input": [COUNT.encode()]})
    model.execute([request])
    (only,) = request.sender.responses()
    assert len(only["text_output"][0].decode()) == 2 + 16


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({"text_input": [b""]}, "text_input is empty; send a prompt"),
        (
            {"text_input": [b"a", b"b"]},
            "text_input must contain exactly one string; send one string",
        ),
        (
            {"image": np.array([b"x"], dtype=object)},
            "the openvino engine kind does not support the image input; omit the input, or serve a "
            "multimodal model with the vllm engine kind",
        ),
    ],
)
def test_rejects_an_unsupported_request(model: Any, tensors: dict[str, Any], why: str) -> None:
    assert generate(model, **tensors) == [why]


def test_cancelled_request_returns_its_text(model: Any) -> None:
    request = Request({"text_input": [HANG.encode()], "return_finish_reason": TRUE})
    model.execute([request])
    request.sender.client_has_disconnected = True
    assert request.sender.responses() == [
        {"text_output": [HANG.encode()], "finish_reason": [b"abort"]}
    ]


def test_sampling_parameters_require_the_features_of_the_engine_kind(model: Any) -> None:
    assert generate(model, sampling={"min_p": 0.2}) == generate(model)
    assert generate(model, sampling={"logit_bias": {}}) == generate(model)
    (why,) = generate(model, sampling={"logit_bias": {"5": 1}})
    assert why == (
        "sampling_parameters contains logit_bias, which the openvino engine kind does not support, "
        "because OpenVINO GenAI does not support a logit bias; omit logit_bias"
    )


def test_model_json_that_is_not_an_object_fails_the_load(model: Any, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.json").write_text("[]")
    args = {
        "model_config": "{}",
        "model_repository": str(tmp_path),
        "model_name": "mine",
        "model_version": "1",
    }
    why = r"model\.json cannot be read: the file does not contain a JSON object"
    with pytest.raises(triton_utils.TritonModelException, match=why):
        type(model)().initialize(args)
