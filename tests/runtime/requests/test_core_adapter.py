"""Requests to every version of TensorRT-LLM, and its completed responses."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from trtllm_serve_cli.repository.model.contract import find_first_version
from trtllm_serve_cli.runtime.engine import InvalidRequest
from trtllm_serve_cli.runtime.requests.core_adapter import CoreAdapter
from trtllm_serve_cli.runtime.triton.core_inputs import OWN_INPUTS
from trtllm_serve_cli.runtime.triton.parameters import Parameters
from trtllm_serve_cli.runtime.triton.tensors import Array

FLAG = np.array([[True]])
COUNTS = {"return_num_input_tokens": FLAG, "return_num_output_tokens": FLAG}


def _adapter(version: str = "", **parameters: str) -> CoreAdapter:
    values = {**parameters, "tensorrt_llm_version": version}
    config = {"parameters": {name: {"string_value": text} for name, text in values.items()}}
    return CoreAdapter.of(
        Parameters({"model_config": json.dumps(config), "model_name": "m", "model_version": "1"})
    )


def _inputs(*prompts: list[int], **others: Array) -> dict[str, Array]:
    longest = max(map(len, prompts))
    rows = [prompt + [0] * (longest - len(prompt)) for prompt in prompts]
    return {
        "input_ids": np.array(rows, np.int32),
        "input_lengths": np.array([[len(prompt)] for prompt in prompts], np.int32),
        **others,
    }


def _outputs(*ids: int, **others: Any) -> dict[str, Array]:
    return {
        "output_ids": np.array([[ids]], np.int32),
        "sequence_length": np.array([[len(ids)]], np.int32),
        **{name: np.array([[value]], np.int32) for name, value in others.items()},
    }


def _as_lists(outputs: dict[str, Array]) -> dict[str, Any]:
    return {name: array.tolist() for name, array in outputs.items()}


def test_first_versions_match_the_contract() -> None:
    for name in OWN_INPUTS:
        first = find_first_version("tensorrt_llm", name)
        assert first is not None
        major, minor = map(int, first.split("."))
        inputs = _inputs([1], **{name: FLAG})
        assert name in _adapter(f"{major}.{minor}.0").adapt(inputs).inputs
        earlier = f"{major}.{minor - 1}.0" if minor else "0.21.0"
        assert name not in _adapter(earlier).adapt(inputs).inputs


def test_python_model_receives_every_input() -> None:
    inputs = _inputs([1, 2], [3], exclude_input_in_output=FLAG, **COUNTS)
    request = _adapter().adapt(inputs)
    assert request.inputs == inputs
    assert _adapter().list_outputs(["num_input_tokens"]) == ["num_input_tokens"]


def test_missing_indexes_are_those_of_the_first_sequence() -> None:
    completed = _adapter("0.19.0").adapt(_inputs([1])).complete(_outputs(5))
    assert (completed["batch_index"].item(), completed["sequence_index"].item()) == (0, 0)
    completed = _adapter("0.19.0").adapt(_inputs([1], [2])).complete(_outputs(5, batch_index=1))
    assert (completed["batch_index"].item(), completed["sequence_index"].item()) == (1, 0)


def test_prompt_is_removed_if_the_backend_cannot_exclude_it() -> None:
    request = _adapter("0.13.0").adapt(_inputs([1, 2], exclude_input_in_output=FLAG, **COUNTS))
    assert _as_lists(request.complete(_outputs(1, 2, 7, 8, 9))) == {
        "output_ids": [[[7, 8, 9]]],
        "sequence_length": [[3]],
        "batch_index": [[0]],
        "sequence_index": [[0]],
        "num_input_tokens": [[2]],
        "num_output_tokens": [[3]],
    }


@pytest.mark.parametrize(
    ("version", "parameters", "inputs", "ids"),
    [
        ("0.13.0", {}, {}, [1, 2, 7]),
        ("0.13.0", {"exclude_input_in_output": "true"}, {"exclude_input_in_output": FLAG}, [7]),
        ("0.13.0", {}, {"exclude_input_in_output": FLAG, "streaming": FLAG}, [7]),
        ("0.14.0", {}, {"exclude_input_in_output": FLAG}, [7]),
    ],
)
def test_tokens_are_unchanged_if_the_backend_excludes_the_prompt_itself(
    version: str, parameters: dict[str, str], inputs: dict[str, Array], ids: list[int]
) -> None:
    request = _adapter(version, **parameters).adapt(_inputs([1, 2], **inputs, **COUNTS))
    completed = request.complete(_outputs(*ids))
    assert completed["output_ids"].tolist() == [[ids]]
    assert completed["num_output_tokens"].item() == 1


def test_several_prompts_need_a_version_that_splits_them() -> None:
    with pytest.raises(InvalidRequest, match=r"TensorRT-LLM 0\.11 accepts one prompt per request"):
        _adapter("0.11.0").adapt(_inputs([1], [2]))
    assert len(_adapter("0.12.0").adapt(_inputs([1], [2])).prompts) == 2
