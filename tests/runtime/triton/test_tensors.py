"""From the tensors of a `tensorrt_llm` request to generation requests, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trtllm_serve_cli.runtime.engine import InvalidRequest
from trtllm_serve_cli.runtime.triton.tensors import (
    RowRequest,
    find_failure,
    pack_failure,
    pack_sequences,
    parse_rows,
)
from trtllm_serve_cli.runtime.triton.word_lists import encode_words


def _tensors(**more: Any) -> dict[str, np.ndarray[Any, Any]]:
    """One row of three tokens, and `more`."""
    given = {"input_ids": [[7, 8, 9]], "input_lengths": [[3]], "request_output_len": [[5]], **more}
    return {name: np.asarray(value) for name, value in given.items()}


def _parse(**more: Any) -> list[RowRequest]:
    return parse_rows(_tensors(**more).get, exclude_input=False)


def _refusal(tensors: dict[str, Any]) -> str:
    with pytest.raises(InvalidRequest) as refused:
        parse_rows(tensors.get, exclude_input=False)
    return str(refused.value)


def test_what_must_be_there_makes_a_request() -> None:
    assert _parse() == [
        RowRequest(
            fields={
                "input_ids": (7, 8, 9),
                "max_new_tokens": 5,
                "beam_width": 1,
                "num_return_sequences": 1,
                "stop_words": (),
                "bad_words": (),
            },
            batch_index=0,
            pad_id=0,
            exclude_input=False,
            tells_num_input_tokens=False,
            tells_num_output_tokens=False,
        )
    ]


@pytest.mark.parametrize(
    ("tensor", "given", "field", "value"),
    [
        ("end_id", np.int32(2), "end_id", 2),
        ("beam_width", np.int32(3), "beam_width", 3),
        ("num_return_sequences", np.int32(2), "num_return_sequences", 2),
        ("temperature", np.float32(0.5), "temperature", 0.5),
        ("runtime_top_k", np.int32(40), "top_k", 40),
        ("runtime_top_p", np.float32(0.25), "top_p", 0.25),
        ("seed", np.uint64(2**64 - 1), "seed", 2**64 - 1),
        ("repetition_penalty", np.float32(1.5), "repetition_penalty", 1.5),
        ("presence_penalty", np.float32(-1), "presence_penalty", -1.0),
        ("frequency_penalty", np.float32(0.5), "frequency_penalty", 0.5),
        ("len_penalty", np.float32(2), "len_penalty", 2.0),
        ("early_stopping", np.int32(1), "early_stopping", True),
        ("min_tokens", np.int32(4), "min_tokens", 4),
        ("return_log_probs", np.bool_(True), "return_log_probs", True),
    ],
)
def test_a_tensor_sets_its_field(tensor: str, given: Any, field: str, value: Any) -> None:
    set_field = _parse(**{tensor: [[given]]})[0].fields[field]
    assert (set_field, type(set_field)) == (value, type(value))


@pytest.mark.parametrize(
    ("tensor", "given", "attribute", "value"),
    [
        ("exclude_input_in_output", True, "exclude_input", True),
        ("pad_id", 4, "pad_id", 4),
        ("end_id", 2, "pad_id", 2),
        ("end_id", -1, "pad_id", 0),
        ("return_num_input_tokens", True, "tells_num_input_tokens", True),
        ("return_num_output_tokens", True, "tells_num_output_tokens", True),
    ],
)
def test_a_tensor_sets_how_to_answer(tensor: str, given: Any, attribute: str, value: Any) -> None:
    assert getattr(_parse(**{tensor: [[given]]})[0], attribute) == value


def test_a_request_overrides_the_models_default_for_the_echo() -> None:
    tensors = _tensors(exclude_input_in_output=[[False]])
    assert not parse_rows(tensors.get, exclude_input=True)[0].exclude_input


def test_a_beam_search_returns_all_beams_unless_told_otherwise() -> None:
    rows = [*_parse(beam_width=[[3]]), *_parse(beam_width=[[3]], num_return_sequences=[[1]])]
    assert [row.fields["num_return_sequences"] for row in rows] == [3, 1]
    assert all(row.is_beam_search for row in rows)


def test_each_row_of_a_batch_has_its_own_values() -> None:
    rows = _parse(
        input_ids=[[7, 8, 0], [5, 0, 0]],
        input_lengths=[[2], [1]],
        request_output_len=[[4], [6]],
        runtime_top_k=[[1], [50]],
        stop_words_list=encode_words([[(3, 4)], []]),
        bad_words_list=encode_words([[], [(1,), (2,)]]),
    )
    shared = {"beam_width": 1, "num_return_sequences": 1}
    assert [(row.batch_index, row.fields) for row in rows] == [
        (0, {**shared, "input_ids": (7, 8), "max_new_tokens": 4, "top_k": 1,
             "stop_words": ((3, 4),), "bad_words": ()}),
        (1, {**shared, "input_ids": (5,), "max_new_tokens": 6, "top_k": 50,
             "stop_words": (), "bad_words": ((1,), (2,))}),
    ]  # fmt: skip


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_one_value_per_row_may_come_with_or_without_its_own_axis(shape: tuple[int, ...]) -> None:
    assert _parse(runtime_top_k=np.full(shape, 9))[0].fields["top_k"] == 9


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("input_ids", "input_ids is missing; send the prompt's token ids"),
        ("input_lengths", "input_lengths is missing; send one number per row"),
        ("request_output_len", "request_output_len is missing; send one number per row"),
    ],
)
def test_a_missing_tensor_is_named(name: str, why: str) -> None:
    tensors = _tensors()
    del tensors[name]
    assert _refusal(tensors) == why


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [
        ("input_ids", [7, 8], "input_ids has the shape [2]; send [rows, n]"),
        ("input_lengths", [[4]], "input_lengths is 4, but input_ids has 3"),
        ("input_lengths", [[-1]], "input_lengths is -1, but input_ids has 3"),
        (
            "temperature",
            [[0.5, 0.6]],
            "temperature has the shape [1, 2]; send one value for each of 1 rows",
        ),
        (
            "pad_id",
            np.zeros((1, 0)),
            "pad_id has the shape [1, 0]; send one value for each of 1 rows",
        ),
        (
            "stop_words_list",
            [[1], [-1]],
            "stop_words_list has the shape [2, 1]; send [rows, 2, n]",
        ),
        (
            "bad_words_list",
            [[[1], [-1]]] * 2,
            "bad_words_list has the shape [2, 2, 1]; send [rows, 2, n]",
        ),
        (
            "stop_words_list",
            [[[1, 2], [3, -1]]],
            "stop_words_list cannot be read: its ends do not grow from 1 to 2: 3",
        ),
        (
            "bad_words_list",
            [[[1]]],
            "bad_words_list cannot be read: its shape is [1, 1]; a row is [2, n]",
        ),
    ],
)
def test_a_tensor_that_cannot_be_used_is_named(name: str, given: Any, why: str) -> None:
    assert _refusal(_tensors(**{name: given})) == why


def test_a_request_of_no_rows_is_refused() -> None:
    """It would never be answered: each answer is that of a row."""
    tensors = {name: value[:0] for name, value in _tensors().items()}
    assert _refusal(tensors) == "input_ids has no rows; send at least one"


def test_a_guide_is_text() -> None:
    (row,) = _parse(
        guided_decoding_guide_type=np.array([[b"regex"]], dtype=object),
        guided_decoding_guide=np.array([["\u00e9+".encode()]], dtype=object),
    )
    assert (row.fields["guide_type"], row.fields["guide"]) == ("regex", "\u00e9+")


def test_sequences_are_padded_and_log_probs_stand_below_their_tokens() -> None:
    packed = pack_sequences([[7, 8, 9], [7]], [[-0.5, -0.25], []], pad_id=2)
    assert {name: (value.dtype, value.tolist()) for name, value in packed.items()} == {
        "output_ids": (np.int32, [[[7, 8, 9], [7, 2, 2]]]),
        "sequence_length": (np.int32, [[3, 1]]),
        "output_log_probs": (np.float32, [[[0.0, -0.5, -0.25], [0.0, 0.0, 0.0]]]),
    }


def test_a_sequence_without_tokens_is_packed_too() -> None:
    packed = pack_sequences([[]], [[]], pad_id=2)
    assert {name: value.shape for name, value in packed.items()} == {
        "output_ids": (1, 1, 0),
        "sequence_length": (1, 1),
        "output_log_probs": (1, 1, 0),
    }


@pytest.mark.parametrize("was_refused", [True, False])
def test_a_failure_comes_out_as_it_was_packed(was_refused: bool) -> None:
    why = "the engine worker died: 你好"
    assert find_failure(pack_failure(why, was_refused=was_refused)) == (why, was_refused)


@pytest.mark.parametrize("more", [{}, {"sequence_index": np.array([[0]], dtype=np.int32)}], ids=str)
def test_an_answer_is_no_failure(more: dict[str, Any]) -> None:
    assert find_failure(pack_sequences([[7]], [[]], 0) | more) is None
