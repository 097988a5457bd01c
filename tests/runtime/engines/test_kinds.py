"""The runtime half of the engine kinds, found by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trtllm_serve_cli.runtime.engine import InvalidRequest
from trtllm_serve_cli.runtime.engines.kinds import (
    explain_refusal,
    find_kind,
    kind_names,
    refuse_set,
)


def test_every_folder_beside_the_table_is_a_kind() -> None:
    assert kind_names() == ("openvino", "pytorch", "sim", "tensorrt", "vllm")


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown engine kind 'onnx'"):
        find_kind("onnx")


@pytest.mark.parametrize("name", kind_names())
def test_a_kind_runs_in_a_worker_or_in_a_backend_of_triton(name: str) -> None:
    kind = find_kind(name)
    assert (kind.load is None) == (kind.worker_config is None)


def test_a_refusal_names_the_tensor_the_kind_and_who_can() -> None:
    assert explain_refusal("return_context_logits", "openvino") == (
        "return_context_logits (logits) is not supported by the engine kind openvino: OpenVINO "
        "GenAI keeps the logits to itself; leave it out, or serve this model with the engine kind "
        "tensorrt"
    )


@pytest.mark.parametrize(
    "given",
    [[[1]], [[0.0, 0.5]], [[True]], np.array([[b"", b"x"]], dtype=object), [[float("nan")]]],
    ids=str,
)
def test_a_tensor_that_nothing_acts_on_is_refused_when_it_asks_for_something(given: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        refuse_set({"embedding_bias": np.asarray(given)}.get, ["embedding_bias"], "openvino")
    assert str(refused.value) == (
        "embedding_bias (embedding bias) is not supported by the engine kind openvino: OpenVINO "
        "GenAI takes no bias on its logits; leave it out, or serve this model with the engine kind "
        "tensorrt"
    )


@pytest.mark.parametrize(
    "given",
    [None, [[0]], [[0.0]], [[False]], np.zeros((1, 0)), np.array([[b""]], dtype=object)],
    ids=str,
)
def test_a_tensor_that_asks_for_nothing_is_let_through(given: Any) -> None:
    tensor = None if given is None else np.asarray(given)
    refuse_set({"embedding_bias": tensor}.get, ["embedding_bias"], "openvino")
