"""Draft-model speculative decoding with toy models, whose next token depends on all tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.runtime.engine import InvalidRequest
from trtllm_serve_cli.runtime.requests.draft_decoding import (
    DraftRequest,
    generate_with_drafts,
    requests_drafts,
)
from trtllm_serve_cli.runtime.triton.tensors import Array
from trtllm_serve_cli.runtime.triton.word_lists import decode_words, encode_words, ends_with_word

PROMPT = (3, 1, 4)
VOCAB_SIZE = 7
END_ID = 6
NextToken = Callable[[list[int]], int]


class Model:
    """A toy for both models: it accepts draft tokens, and ends as TensorRT-LLM does."""

    def __init__(self, next_token: NextToken) -> None:
        self.next_token = next_token
        self.received: list[dict[str, Array]] = []

    def ask(self, inputs: dict[str, Array]) -> dict[str, Array]:
        self.received.append(inputs)
        ids = inputs["input_ids"][0].tolist()
        min_tokens = int(inputs["min_tokens"].flat[0]) if "min_tokens" in inputs else 0
        drafts = inputs["draft_input_ids"][0].tolist() if "draft_input_ids" in inputs else None
        words = decode_words(inputs["stop_words_list"][0]) if "stop_words_list" in inputs else ()
        new: list[int] = []
        while len(new) < int(inputs["request_output_len"].flat[0]):
            token = self.next_token([*ids, *new])
            if token == END_ID and len(new) < min_tokens:
                token = 0
            if token == END_ID:
                break
            new.append(token)
            if ends_with_word(new, len(new), words):
                break
            if drafts is not None and new != drafts[: len(new)]:
                break
        return {
            "output_ids": np.array([[new]], np.int32),
            "sequence_length": np.array([[len(new)]], np.int32),
            "generation_logits": np.eye(VOCAB_SIZE, dtype=np.float32)[new][None, None],
            "output_log_probs": np.full((1, 1, len(new)), -0.5, np.float32),
            "cum_log_probs": np.array([[-0.5 * len(new)]], np.float32),
            "total_draft_tokens": np.array([[len(drafts or ())]], np.int32),
            "total_accepted_draft_tokens": np.array([[max(len(new) - 1, 0)]], np.int32),
            "acceptance_rate": np.array([[0.0]], np.float32),
            "first_token_time_ns": np.array([[len(self.received)]], np.int64),
            "last_token_time_ns": np.array([[len(self.received)]], np.int64),
        }


def _inputs(max_tokens: int = 12, **others: Any) -> dict[str, Array]:
    return {
        "input_ids": np.array([PROMPT], np.int32),
        "input_lengths": np.array([[len(PROMPT)]], np.int32),
        "request_output_len": np.array([[max_tokens]], np.int32),
        "end_id": np.array([[END_ID]], np.int32),
        **{name: np.asarray(value) for name, value in others.items()},
    }


def _request(inputs: dict[str, Array], num_draft_tokens: int = 4, **others: Any) -> DraftRequest:
    columns = {"num_draft_tokens": np.array([[num_draft_tokens]], np.int32), **others}
    return DraftRequest.of(inputs, columns, min_tokens_name="min_tokens", excludes_input=True)


def _run(request: DraftRequest, draft: Model, target: Model) -> dict[str, Array]:
    return generate_with_drafts(request, draft.ask, target.ask, lambda: False)


def _counting(ids: list[int]) -> int:
    return (ids[-1] + 1) % 6


@st.composite
def next_tokens(draw: st.DrawFn, vocab_size: int = VOCAB_SIZE) -> NextToken:
    """Draw a function from the last two tokens to the next token."""
    table = draw(st.lists(st.integers(0, vocab_size - 1), min_size=49, max_size=49))
    return lambda ids: table[ids[-2] * 7 + ids[-1]]


@given(
    target=next_tokens(),
    draft=next_tokens(),
    max_tokens=st.integers(1, 15),
    num_draft_tokens=st.integers(1, 6),
    min_tokens=st.integers(0, 10),
    words=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), max_size=2),
)
def test_response_is_that_of_the_target_model_alone(
    target: NextToken,
    draft: NextToken,
    max_tokens: int,
    num_draft_tokens: int,
    min_tokens: int,
    words: list[list[int]],
) -> None:
    inputs = _inputs(max_tokens, min_tokens=[[min_tokens]], stop_words_list=encode_words([words]))
    alone = Model(target).ask(inputs)["output_ids"][0, 0].tolist()
    request = _request(inputs, num_draft_tokens)
    outputs = _run(request, Model(draft), Model(target))
    assert outputs["output_ids"][0, 0].tolist() == alone
    assert outputs["sequence_length"].tolist() == [[len(alone)]]


def test_target_model_needs_one_step_per_accepted_draft() -> None:
    draft, target = Model(_counting), Model(_counting)
    outputs = _run(_request(_inputs(max_tokens=12), 4), draft, target)
    assert outputs["output_ids"][0, 0].tolist() == [5, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4]
    # Two steps with four draft tokens, and a last step with the draft token that is left.
    lengths = [int(each["request_output_len"].flat[0]) for each in target.received]
    assert lengths == [5, 5, 2]
    assert [each["input_ids"].shape[1] for each in draft.received] == [3, 8, 13]


def test_wrong_drafts_cost_one_step_per_token() -> None:
    target = Model(_counting)
    outputs = _run(_request(_inputs(max_tokens=5), 4), Model(lambda ids: 5 - ids[-1] % 2), target)
    assert len(target.received) >= 4
    assert outputs["output_ids"][0, 0].tolist() == [5, 0, 1, 2, 3]


def test_logits_of_the_draft_tokens_are_forwarded_on_request() -> None:
    draft, target = Model(_counting), Model(_counting)
    request = _request(_inputs(max_tokens=4), 2, use_draft_logits=np.array([[True]]))
    _run(request, draft, target)
    assert all(each["return_generation_logits"].all() for each in draft.received)
    first = target.received[0]
    assert first["draft_logits"].shape == (1, 2, VOCAB_SIZE)
    assert first["draft_logits"].argmax(axis=-1).tolist() == first["draft_input_ids"].tolist()


def test_draft_model_without_logits_is_an_error() -> None:
    def ask_draft(inputs: dict[str, Array]) -> dict[str, Array]:
        outputs = Model(_counting).ask(inputs)
        del outputs["generation_logits"]
        return outputs

    request = _request(_inputs(), use_draft_logits=np.array([[True]]))
    with pytest.raises(InvalidRequest, match="build the draft engine with gather_generation"):
        generate_with_drafts(request, ask_draft, Model(_counting).ask, lambda: False)


def test_draft_model_does_not_receive_inputs_for_the_target_model() -> None:
    draft = Model(_counting)
    others = {
        "lora_task_id": [[1]], "return_log_probs": [[True]], "streaming": [[False]],
        "runtime_top_k": [[1]],
    }  # fmt: skip
    _run(_request(_inputs(**others)), draft, Model(_counting))
    assert set(draft.received[0]) == {
        "input_ids", "input_lengths", "request_output_len", "end_id", "min_tokens",
        "runtime_top_k", "exclude_input_in_output",
    }  # fmt: skip


def test_response_adds_up_the_outputs_of_all_steps() -> None:
    flags = {
        name: [[True]]
        for name in ("return_log_probs", "return_num_input_tokens", "return_num_output_tokens")
    }
    draft, target = Model(_counting), Model(_counting)
    outputs = _run(_request(_inputs(max_tokens=6, **flags), 4), draft, target)
    assert {name: array.tolist() for name, array in outputs.items()} == {
        "output_ids": [[[5, 0, 1, 2, 3, 4]]],
        "sequence_length": [[6]],
        "batch_index": [[0]],
        "sequence_index": [[0]],
        "output_log_probs": [[[-0.5] * 6]],
        "cum_log_probs": [[-3.0]],
        "num_input_tokens": [[3]],
        "num_output_tokens": [[6]],
        "total_draft_tokens": [[4]],
        "total_accepted_draft_tokens": [[4]],
        "acceptance_rate": [[1.0]],
        "first_token_time_ns": [[1]],
        "last_token_time_ns": [[2]],
    }


def test_response_starts_with_the_prompt_unless_excluded() -> None:
    request = _request(_inputs(max_tokens=2, exclude_input_in_output=[[False]]))
    outputs = _run(request, Model(_counting), Model(_counting))
    assert outputs["output_ids"][0, 0].tolist() == [*PROMPT, 5, 0]


def test_cancelled_request_stops_between_two_steps() -> None:
    target = Model(_counting)
    outputs = generate_with_drafts(
        _request(_inputs(max_tokens=100), 4),
        Model(_counting).ask,
        target.ask,
        lambda: len(target.received) == 2,
    )
    assert outputs["sequence_length"].tolist() == [[10]]


def test_step_without_outputs_ends_the_response() -> None:
    outputs = generate_with_drafts(_request(_inputs()), lambda _: {}, lambda _: {}, lambda: False)
    assert outputs["output_ids"].shape == (1, 1, 0)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"streaming": [[True]]}, "stream cannot be combined with num_draft_tokens; omit"),
        ({"beam_width": [[2]]}, "beam_width is 2, but must be 1 with num_draft_tokens"),
        ({"num_return_sequences": [[2]]}, "num_return_sequences is 2, but must be 1"),
        ({"return_context_logits": [[True]]}, "return_context_logits cannot be combined"),
        ({"return_generation_logits": [[True]]}, "return_generation_logits cannot be combined"),
        ({"guided_decoding_guide": [[b"x"]]}, "guided_decoding_guide cannot be combined"),
        ({"prompt_embedding_table": [[[0.5]]]}, "prompt_embedding_table cannot be combined"),
        ({"input_ids": [[1], [2]]}, "supports only one prompt per request, but the request has 2"),
    ],
)  # fmt: skip
def test_rejects_what_drafts_do_not_support(others: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        _request(_inputs(**others))


@pytest.mark.parametrize(("value", "expected"), [(None, False), (0, False), (-1, False), (3, True)])
def test_only_a_positive_number_requests_drafts(value: int | None, expected: bool) -> None:
    columns = {} if value is None else {"num_draft_tokens": np.array([[value]])}
    assert requests_drafts(columns.get) is expected
