"""A text model with stubs of the models behind it, and the requests that tests send to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes import triton_utils as pb_utils
from tests.fakes.scripted_worker import COUNT
from tests.fakes.triton_utils import InferenceRequest, InferenceResponse, Request, Tensor
from tests.waiting import wait_until
from trtllm_serve_cli.runtime.triton.tensors import pack_sequences

INPUTS = (
    "text_input", "max_tokens", "stream", "top_k", "image_input", "num_draft_tokens", "stop",
)  # fmt: skip
PREPROCESSED = (
    "INPUT_ID", "REQUEST_INPUT_LEN", "REQUEST_OUTPUT_LEN", "STOP_WORDS_IDS", "BAD_WORDS_IDS",
    "OUT_END_ID", "OUT_PAD_ID",
)  # fmt: skip
Engine = Callable[[InferenceRequest], Any]


@contextmanager
def loaded(folder: Path, *, decoupled: bool = True, **parameters: str) -> Iterator[Any]:
    from trtllm_serve_cli.runtime.models.text import TritonPythonModel

    values = {"tokenizer_dir": str(folder), "engine_kind": "scripted", "ask_preprocessing": "true"}
    values |= parameters
    config = {
        "input": [{"name": name} for name in INPUTS],
        "model_transaction_policy": {"decoupled": decoupled},
        "parameters": {
            name: {"string_value": value}
            for name, value in {**values, "cancellation_check_period_ms": "1"}.items()
        },
    }
    args = {"model_config": json.dumps(config), "model_name": "ensemble", "model_version": "1"}
    model = TritonPythonModel()
    model.initialize(args)
    yield model
    model.finalize()


def stub_engine(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    """Replace `tensorrt_llm` by `engine`."""

    def execute(request: InferenceRequest, decoupled: bool = False) -> Any:
        if request.model_name == "preprocessing":
            return InferenceResponse([Tensor(each, np.array([[1]])) for each in PREPROCESSED])
        return engine(request)

    monkeypatch.setattr(pb_utils.InferenceRequest, "exec", execute)


def make_request(*, request_id: str = "", **tensors: Any) -> Request:
    return Request({"text_input": [[b"hi"]], "max_tokens": [[5]], **tensors}, request_id)


def send_stop(model: Any, request_id: str) -> list[Any]:
    """Send a stop request to `model`, and return the responses."""
    request = make_request(request_id=request_id, stop=[[True]])
    model.execute([request])
    return request.sender.responses()


def make_response(text: str) -> InferenceResponse:
    return InferenceResponse([Tensor(name, value) for name, value in make_outputs(text).items()])


def make_outputs(text: str, row: int = 0) -> dict[str, Any]:
    packed = pack_sequences([[ord(letter) for letter in text]], 0)
    packed |= {"batch_index": np.array([[row]]), "sequence_index": np.array([[0]])}
    return packed


def texts_of(answers: list[Any]) -> list[str]:
    return [answer["text_output"][0].decode() for answer in answers]


def make_error(why: str) -> InferenceResponse:
    return InferenceResponse(error=pb_utils.TritonError(why))


def connect_worker(model: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Request]:
    """Wait until `model` uses the engine worker. Return a function that sends a request."""
    tensors = {"REQUEST_INPUT_LEN": [[1]], "REQUEST_OUTPUT_LEN": [[3]]}

    def execute(request: InferenceRequest, decoupled: bool = False) -> Any:
        if request.model_name != "preprocessing":
            return [make_error("not at the worker")]
        return InferenceResponse([Tensor(name, np.array(each)) for name, each in tensors.items()])

    def generate(command: int = COUNT, **more: Any) -> Request:
        tensors["INPUT_ID"] = [[command]]
        request = make_request(**more)
        model.execute([request])
        return request

    monkeypatch.setattr(pb_utils.InferenceRequest, "exec", execute)
    wait_until(lambda: generate().sender.responses() != ["not at the worker"])
    return generate
