"""Conversion between tensors of `tensorrt_llm` and generation requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trtllm_serve_cli.runtime.engine import InvalidRequest
from trtllm_serve_cli.runtime.triton.tensors import (
    RowRequest,
    as_number,
    find_failure,
    pack_failure,
    pack_log_probs,
    pack_sequences,
    parse_rows,
)
from trtllm_serve_cli.runtime.triton.word_lists import encode_words


def _tensors(**more: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return a row of three tokens, and `more`."""
    sent = {"input_ids": [[7, 8, 9]], "input_lengths": [[3]], "request_output_len": [[5]], **more}
    return {name: np.asarray(value) for name, value in sent.items()}


def _parse(**more: Any) -> list[RowRequest]:
    return parse_rows(_tensors(**more).get, exclude_input=False)


def _rejection(tensors: dict[str, Any]) -> str:
    with pytest.raises(InvalidRequest) as rejected:
        parse_rows(tensors.get, exclude_input=False)
    return str(rejected.value)


def test_parses_a_request_of_required_tensors() -> None:
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
            returns_num_input_tokens=False,
            returns_num_output_tokens=False,
        )
    ]


@pytest.mark.parametrize(
    ("tensor", "sent", "field", "value"),
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
def test_tensor_sets_its_field(tensor: str, sent: Any, field: str, value: Any) -> None:
    set_field = _parse(**{tensor: [[sent]]})[0].fields[field]
    assert (set_field, type(set_field)) == (value, type(value))


@pytest.mark.parametrize(
    ("tensor", "sent", "attribute", "value"),
    [
        ("exclude_input_in_output", True, "exclude_input", True),
        ("pad_id", 4, "pad_id", 4),
        ("end_id", 2, "pad_id", 2),
        ("end_id", -1, "pad_id", 0),
        ("return_num_input_tokens", True, "returns_num_input_tokens", True),
        ("return_num_output_tokens", True, "returns_num_output_tokens", True),
    ],
)
def test_tensor_sets_a_response_option(tensor: str, sent: Any, attribute: str, value: Any) -> None:
    assert getattr(_parse(**{tensor: [[sent]]})[0], attribute) == value


def test_request_overrides_the_models_exclude_input() -> None:
    tensors = _tensors(exclude_input_in_output=[[False]])
    assert not parse_rows(tensors.get, exclude_input=True)[0].exclude_input


def test_beam_search_returns_all_beams_by_default() -> None:
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
def test_accepts_one_value_per_row_in_one_or_two_dimensions(shape: tuple[int, ...]) -> None:
    assert _parse(runtime_top_k=np.full(shape, 9))[0].fields["top_k"] == 9


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("input_ids", "input_ids is missing; send the prompt's token ids"),
        ("input_lengths", "input_lengths is missing; send one number per row"),
        ("request_output_len", "request_output_len is missing; send one number per row"),
    ],
)
def test_error_names_a_missing_tensor(name: str, why: str) -> None:
    tensors = _tensors()
    del tensors[name]
    assert _rejection(tensors) == why


@pytest.mark.parametrize(
    ("name", "sent", "why"),
    [
        ("input_ids", [7, 8], "input_ids has shape [2]; send a tensor of shape [rows, tokens]"),
        (
            "input_lengths",
            [[4]],
            "input_lengths is 4; send a length from 0 to 3, the number of tokens in input_ids",
        ),
        (
            "input_lengths",
            [[-1]],
            "input_lengths is -1; send a length from 0 to 3, the number of tokens in input_ids",
        ),
        (
            "temperature",
            [[0.5, 0.6]],
            "temperature has shape [1, 2], but the number of rows is 1; send one value per row",
        ),
        (
            "pad_id",
            np.zeros((1, 0)),
            "pad_id has shape [1, 0], but the number of rows is 1; send one value per row",
        ),
        (
            "stop_words_list",
            [[1], [-1]],
            "stop_words_list has shape [2, 1]; send a tensor of shape [rows, 2, n]",
        ),
        (
            "bad_words_list",
            [[[1], [-1]]] * 2,
            "bad_words_list has shape [2, 2, 1]; send a tensor of shape [rows, 2, n]",
        ),
        (
            "stop_words_list",
            [[[1, 2], [3, -1]]],
            "stop_words_list is invalid: a word ends at position 3, but its end position "
            "must be between 1 and 2",
        ),
        (
            "bad_words_list",
            [[[1]]],
            "bad_words_list is invalid: a row has shape [1, 1]; send a tensor of shape [2, n]",
        ),
    ],
)
def test_error_names_an_invalid_tensor(name: str, sent: Any, why: str) -> None:
    assert _rejection(_tensors(**{name: sent})) == why


def test_rejects_a_request_without_rows() -> None:
    """Such a request would never receive a response, since each one belongs to a row."""
    tensors = {name: value[:0] for name, value in _tensors().items()}
    assert _rejection(tensors) == "input_ids has no rows; send at least one row"


def test_decodes_a_guide_as_text() -> None:
    (row,) = _parse(
        guided_decoding_guide_type=np.array([[b"regex"]], dtype=object),
        guided_decoding_guide=np.array([["\u00e9+".encode()]], dtype=object),
    )
    assert (row.fields["guide_type"], row.fields["guide"]) == ("regex", "\u00e9+")


def test_pads_sequences() -> None:
    packed = pack_sequences([[7, 8, 9], [7]], pad_id=2)
    assert {name: (value.dtype, value.tolist()) for name, value in packed.items()} == {
        "output_ids": (np.int32, [[[7, 8, 9], [7, 2, 2]]]),
        "sequence_length": (np.int32, [[3, 1]]),
    }


def test_packs_a_sequence_without_tokens() -> None:
    packed = pack_sequences([[]], pad_id=2)
    assert {name: value.shape for name, value in packed.items()} == {
        "output_ids": (1, 1, 0),
        "sequence_length": (1, 1),
    }


def test_aligns_log_probs_with_the_last_tokens() -> None:
    packed = pack_log_probs([[7, 8, 9], [7]], [[-0.5, -0.25], []])
    assert (packed.dtype, packed.tolist()) == (
        np.float32,
        [[[0.0, -0.5, -0.25], [0.0, 0.0, 0.0]]],
    )


def test_equal_numbers_are_the_same_read_only_array() -> None:
    number = as_number(7)
    assert (number.dtype, number.tolist(), as_number(7) is number) == (np.int32, [[7]], True)
    with pytest.raises(ValueError, match="read-only"):
        number[0, 0] = 8


@pytest.mark.parametrize("was_rejected", [True, False])
def test_finds_a_packed_failure(was_rejected: bool) -> None:
    why = "the engine worker died: 你好"
    assert find_failure(pack_failure(why, was_rejected=was_rejected)) == (why, was_rejected)


@pytest.mark.parametrize("more", [{}, {"sequence_index": np.array([[0]], dtype=np.int32)}], ids=str)
def test_finds_no_failure_in_a_response(more: dict[str, Any]) -> None:
    assert find_failure(pack_sequences([[7]], 0) | more) is None


def test_bias_contains_the_tokens_whose_value_is_not_zero() -> None:
    tensors = _tensors(
        input_ids=[[1], [2]],
        input_lengths=[[1], [1]],
        request_output_len=[[5], [5]],
        embedding_bias=np.array([[0, 1.5, 0, -2], [0, 0, 0, 0]], dtype=np.float32),
    )
    rows = parse_rows(tensors.get, exclude_input=False)
    assert [row.fields["logit_bias"] for row in rows] == [((1, 1.5), (3, -2.0)), ()]


def test_bias_must_have_a_row_per_prompt() -> None:
    assert _rejection(_tensors(embedding_bias=[1.0, 2.0])) == (
        "embedding_bias has shape [2]; send a tensor of shape [rows, vocabulary]"
    )
