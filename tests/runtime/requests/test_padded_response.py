"""Responses of the gpt layout, in which all sequences have the same length."""

from __future__ import annotations

from typing import Any

import numpy as np

from trtllm_serve_cli.runtime.engine import SequenceUpdate
from trtllm_serve_cli.runtime.requests.padded_response import PaddedResponseBuilder, pad_rows
from trtllm_serve_cli.runtime.triton.tensors import parse_rows

END_ID = 2


def pad(prompts: list[list[int]], **tensors: Any) -> list[Any]:
    longest = max(map(len, prompts))
    inputs = {
        "input_ids": [prompt + [END_ID] * (longest - len(prompt)) for prompt in prompts],
        "input_lengths": [[len(prompt)] for prompt in prompts],
        "request_output_len": [[3]] * len(prompts),
        "end_id": [[END_ID]] * len(prompts),
        **tensors,
    }
    arrays = {name: np.array(value) for name, value in inputs.items()}
    return pad_rows(parse_rows(arrays.get, exclude_input=False))


def test_sequences_are_padded_to_the_longest_prompt_and_response() -> None:
    first, second = pad([[5, 6], [7]])
    responses = []
    for row, tokens in ((first, (8, 9)), (second, (8, 9, 10))):
        builder = PaddedResponseBuilder(row, 0)
        responses.append(builder.add(SequenceUpdate(0, token_ids=tokens, finish_reason="stop")))
        assert builder.is_done
    ids = [each["output_ids"].tolist() for each in responses if each]
    assert ids == [[[[5, 6, 8, 9, 2]]], [[[7, 8, 9, 10, 2]]]]
    assert not any("log_probs" in each for each in responses if each)


def test_log_probs_have_a_column_for_each_beam() -> None:
    (row,) = pad([[5, 6]], beam_width=[[2]], output_log_probs=[[True]])
    builder = PaddedResponseBuilder(row, 0)
    for beam, log_probs in enumerate(((-1.0, -2.0), (-3.0,))):
        tokens = tuple(range(8, 8 + len(log_probs)))
        update = SequenceUpdate(
            0, beam, tokens, finish_reason="stop", log_probs=log_probs, cum_log_prob=-3.0
        )
        response = builder.add(update)
    assert response is not None
    assert response["output_ids"].tolist() == [[[5, 6, 8, 9, 2], [5, 6, 8, 2, 2]]]
    assert response["log_probs"].tolist() == [[[-1.0, -3.0], [-2.0, 0.0], [0.0, 0.0]]]


def test_stopped_request_returns_its_tokens() -> None:
    (row,) = pad([[5]])
    builder = PaddedResponseBuilder(row, 0)
    assert builder.add(SequenceUpdate(0, token_ids=(8,))) is None
    (response,) = builder.end_early()
    assert response["output_ids"].tolist() == [[[5, 8, 2, 2]]]
