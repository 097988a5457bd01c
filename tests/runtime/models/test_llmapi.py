"""The model of the llmapi layout, answered by a real worker with the scripted engine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes import scripted_worker, tokenizer, triton_utils
from tests.fakes.triton_utils import Request, TritonModelException
from trtllm_serve_cli.runtime.triton.model_yaml import render_model_yaml

# Characters are tokens, and the first one says what the engine does; it is a special token, so no
# answer shows it.
COUNT, HANG = "\x01a", "\x02a"


@contextmanager
def loaded(
    folder: Path, *, decoupled: bool = True, told: bool | None = None, **arguments: str
) -> Iterator[Any]:
    """The model on the scripted worker; `told` is what model.yaml says of `decoupled`."""
    python = folder / "python3"
    python.write_text(
        f'#!/bin/sh\nshift 2\nexec {sys.executable} {scripted_worker.__file__} "$@"\n'
    )
    python.chmod(0o755)
    sizes = ("max_beam_width", "max_num_seqs", "max_num_tokens", "max_seq_len")
    sizes += ("max_tokens_in_paged_kv_cache", "vocab_size")
    parameters = {
        **dict.fromkeys(sizes, "64"),
        "engine_kind": "openvino",
        "gpt_model_path": "/no/engine",
        "tokenizer_dir": str(folder),
        "add_special_tokens": "false",
        "engine_python": str(python),
        **arguments,
    }
    triton_config = {"decoupled": decoupled if told is None else told, "max_queue_size": 0}
    (folder / "1").mkdir()
    (folder / "1" / "model.yaml").write_text(render_model_yaml(parameters, triton_config))
    config = {
        "input": [{"name": "text_input"}, {"name": "image_url"}],
        "model_transaction_policy": {"decoupled": decoupled},
    }
    args = {
        "model_config": json.dumps(config),
        "model_repository": str(folder),
        "model_name": "tensorrt_llm",
        "model_version": "1",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton_python_backend_utils", triton_utils)
        patch.setitem(sys.modules, "transformers", tokenizer)
        from trtllm_serve_cli.runtime.models.llmapi import TritonPythonModel

        model = TritonPythonModel()
        model.initialize(args)
        try:
            yield model
        finally:
            model.finalize()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with loaded(tmp_path_factory.mktemp("python")) as started:
        yield started


def request(prompt: str, request_id: str = "", **tensors: Any) -> Request:
    given = {"text_input": [prompt.encode()], "sampling_param_max_tokens": [2], **tensors}
    return Request(given, request_id)


def ask(model: Any, prompt: str, **tensors: Any) -> list[Any]:
    asked = request(prompt, **tensors)
    model.execute([asked])
    return asked.sender.told()


def test_answer_comes_whole_after_its_prompt(model: Any) -> None:
    assert ask(model, COUNT) == [{"text_output": [b"a\x0a\x0b"]}]


def test_prompt_can_be_left_out(model: Any) -> None:
    answers = ask(model, COUNT, sampling_param_exclude_input_from_output=[True])
    assert answers == [{"text_output": [b"\x0a\x0b"]}]


def test_stream_brings_pieces_and_their_end(model: Any) -> None:
    answers = ask(model, COUNT, streaming=[True], return_finish_reason=[True])
    *before, last = answers
    assert b"".join(each["text_output"][0] for each in answers) == b"\x0a\x0b"
    assert [each["finish_reason"] for each in before] == [[b"None"]] * len(before)
    assert last["finish_reason"] == [b"length"]


def test_as_many_tokens_come_as_upstreams_default(model: Any) -> None:
    asked = Request({"text_input": [COUNT.encode()]})
    model.execute([asked])
    (only,) = asked.sender.told()
    assert len(only["text_output"][0].decode()) == 1 + 32


def test_log_probability_is_told_when_asked_for(model: Any) -> None:
    (only,) = ask(model, COUNT, return_cumulative_logprob=[True])
    assert only["cumulative_logprob"] == [-1.0]


def test_best_of_several_is_one_answer(model: Any) -> None:
    assert len(ask(model, COUNT, sampling_param_best_of=[3])) == 1


def test_stop_request_ends_the_running_one(model: Any) -> None:
    running, stop = request(HANG, "7"), Request({"stop": [True]}, "7")
    model.execute([running])
    model.execute([stop])
    assert running.sender.told() == [{"text_output": [b"a"]}]
    assert stop.sender.told() == [{}]


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({"text_input": [b""]}, "text_input takes one prompt, which is not empty"),
        ({"text_input": [b"a", b"b"]}, "text_input takes one prompt, which is not empty"),
        ({"text_input": [b"\xff"]}, "text_input is not valid UTF-8 at byte 0"),
        ({"sampling_param_seed": [1, 2]}, "sampling_param_seed has the shape [2]; send one value"),
        (
            {"image_url": np.array([b"x"], dtype=object)},
            "image_url is not supported by the engine kind openvino",
        ),
        ({"sampling_param_temperature": [-1.0]}, "temperature is -1; it must be from 0 to 10000"),
        ({"sampling_param_best_of": [2], "streaming": [True]}, "sampling_param_best_of is above 1"),
        ({"stop": [True]}, "stop names the request id '', which is not running"),
    ],
)
def test_wrong_tensor_is_named(model: Any, tensors: dict[str, Any], why: str) -> None:
    (answer,) = ask(model, COUNT, **tensors)
    assert answer.startswith(why)


def test_model_that_is_not_decoupled_answers_once(tmp_path: Path) -> None:
    with loaded(tmp_path, decoupled=False) as model:
        assert ask(model, COUNT) == [{"text_output": [b"a\x0a\x0b"]}]
        (refused,) = ask(model, COUNT, streaming=[True])
    assert refused.startswith("streaming needs a decoupled model")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"told": False}, "model.yaml and config.pbtxt disagree on whether the model is decoupled"),
        ({"max_bacth_size": "9"}, "model.yaml has max_bacth_size, which no engine of ours takes"),
    ],
)
def test_model_yaml_that_cannot_be_meant_ends_the_load(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(TritonModelException, match=why), loaded(tmp_path, **changes):
        pass
