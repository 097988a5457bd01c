"""Test the lookup of engine kinds by name, and the errors for unsupported tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trtllm_serve_cli.runtime.engine import InvalidRequest
from trtllm_serve_cli.runtime.engines.kinds import (
    explain_rejection,
    find_kind,
    is_supported,
    kind_names,
    list_supported_inputs,
    reject_tensors,
)


def test_every_folder_is_an_engine_kind() -> None:
    assert kind_names() == ("openvino", "pytorch", "sim", "tensorrt", "vllm")


def test_rejects_an_unknown_kind() -> None:
    with pytest.raises(ValueError, match="unknown engine kind 'onnx'"):
        find_kind("onnx")


@pytest.mark.parametrize("name", kind_names())
def test_a_kind_runs_in_a_worker_or_in_a_backend_of_triton(name: str) -> None:
    kind = find_kind(name)
    assert (kind.load is None) == (kind.worker_config is None)


def test_a_rejection_names_the_tensor_and_the_kinds_that_support_it() -> None:
    assert explain_rejection("return_context_logits", "openvino") == (
        "return_context_logits (logits) is not supported by the openvino engine kind, because "
        "OpenVINO GenAI does not return logits. Omit return_context_logits, or serve this "
        "model with the tensorrt engine kind."
    )


@pytest.mark.parametrize(
    "values",
    [[[1]], [[0.0, 0.5]], [[True]], np.array([[b"", b"x"]], dtype=object), [[float("nan")]]],
    ids=str,
)
def test_rejects_an_unsupported_tensor_that_is_set(values: Any) -> None:
    with pytest.raises(InvalidRequest) as raised:
        reject_tensors({"embedding_bias": np.asarray(values)}.get, ["embedding_bias"], "openvino")
    assert str(raised.value) == (
        "embedding_bias (embedding bias) is not supported by the openvino engine kind, "
        "because OpenVINO GenAI does not support a logit bias. Omit embedding_bias, or serve "
        "this model with the pytorch or sim or tensorrt or vllm engine kind."
    )


@pytest.mark.parametrize(
    "values",
    [None, [[0]], [[0.0]], [[False]], np.zeros((1, 0)), np.array([[b""]], dtype=object)],
    ids=str,
)
def test_accepts_an_unsupported_tensor_that_is_not_set(values: Any) -> None:
    tensor = None if values is None else np.asarray(values)
    reject_tensors({"embedding_bias": tensor}.get, ["embedding_bias"], "openvino")


@pytest.mark.parametrize(
    ("tensor", "kind", "expected"),
    [
        ("num_draft_tokens", "tensorrt", True),
        ("num_draft_tokens", "sim", False),
        ("max_tokens", "sim", True),
        ("num_draft_tokens", "unknown", True),
    ],
)
def test_kind_supports_a_tensor_unless_it_declares_otherwise(
    tensor: str, kind: str, expected: bool
) -> None:
    assert is_supported(tensor, kind) is expected


@pytest.mark.parametrize(
    ("kind", "reads_bias"), [("openvino", False), ("vllm", True), ("sim", True)]
)
def test_bias_is_read_if_the_engine_kind_supports_it(kind: str, reads_bias: bool) -> None:
    assert ("embedding_bias" in list_supported_inputs(kind)) is reads_bias
