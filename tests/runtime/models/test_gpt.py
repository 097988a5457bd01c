"""The model of the gpt layout on a real worker with the scripted engine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.fakes import scripted_worker, triton_utils
from tests.fakes.scripted_worker import COUNT
from tests.fakes.triton_utils import Request


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
    values = {**dict.fromkeys(sizes, "64"), "engine_kind": "openvino", "engine_dir": "/no/engine"}
    values["engine_python"] = str(python)
    config = {
        "input": [{"name": "input_ids"}],
        "parameters": {name: {"string_value": value} for name, value in values.items()},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton_python_backend_utils", triton_utils)
        from trtllm_serve_cli.runtime.models.gpt import TritonPythonModel

        model = TritonPythonModel()
        args = {"model_config": json.dumps(config), "model_name": "gpt", "model_version": "1"}
        model.initialize(args)
        try:
            yield model
        finally:
            model.finalize()


def generate(model: Any, **tensors: Any) -> list[Any]:
    inputs = {
        "input_ids": [[COUNT, 3, 3], [COUNT, 9, 9]],
        "input_lengths": [[3], [1]],
        "request_output_len": [[2], [2]],
        "end_id": [[9], [9]],
        "pad_id": [[9], [9]],
        **tensors,
    }
    request = Request(inputs)
    model.execute([request])
    return list(request.sender.responses())


def test_one_response_contains_all_rows(model: Any) -> None:
    (response,) = generate(model)
    assert response["output_ids"] == [[[COUNT, 3, 3, 10, 11]], [[COUNT, 10, 11, 9, 9]]]


def test_log_probs_are_those_of_the_new_tokens(model: Any) -> None:
    (response,) = generate(model, output_log_probs=[[True], [True]])
    assert np.array(response["log_probs"]).shape == (2, 2, 1)


def test_unsigned_end_id_can_be_negative(model: Any) -> None:
    never = np.full((2, 1), 2**32 - 1, np.uint32)
    (response,) = generate(model, end_id=never, request_output_len=np.full((2, 1), 2, np.uint32))
    assert response["output_ids"] == [[[COUNT, 3, 3, 10, 11]], [[COUNT, 10, 11, -1, -1]]]


def test_old_names_of_inputs_are_used(model: Any) -> None:
    (why,) = generate(model, min_length=[[3], [3]])
    assert why == "min_tokens is 3; it must be between 0 and 2"
