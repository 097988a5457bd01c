"""The settings of embedding models, and the conversions of embeddings."""

from __future__ import annotations

import json
import math
import struct
from base64 import b64decode
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trtllm_serve_cli.runtime.embedding import (
    decode_vector,
    encode_vector,
    normalize,
    pad_right,
    pool,
    shorten,
)
from trtllm_serve_cli.runtime.embedding_settings import POOLING_MODES, EmbeddingSettings
from trtllm_serve_cli.runtime.engine import InvalidRequest

_VALUES = st.floats(-100, 100, width=32)
_PROMPTS = st.lists(
    st.lists(st.integers(0, 99), min_size=1, max_size=6).map(tuple), min_size=1, max_size=5
)


@given(
    st.builds(
        EmbeddingSettings,
        dimension=st.integers(1, 4096),
        pooling=st.sampled_from(POOLING_MODES),
        is_normalized=st.booleans(),
        is_matryoshka=st.booleans(),
        matryoshka_dimensions=st.lists(st.integers(1, 4096)).map(tuple),
        prompts=st.dictionaries(st.text(), st.text()),
    )
)
def test_settings_survive_json(settings: EmbeddingSettings) -> None:
    fields = json.loads(settings.to_json())
    assert EmbeddingSettings.from_dict({**fields, "later": 1}) == settings


@pytest.mark.parametrize("pooling", ["median", None, 5])
def test_settings_with_an_unknown_pooling_mode_are_rejected(pooling: Any) -> None:
    with pytest.raises(ValueError, match=r"pooling is .*; it must be one of cls, mean"):
        EmbeddingSettings.from_dict({"dimension": 8, "pooling": pooling})


@given(arrays(np.float32, st.integers(1, 20), elements=_VALUES))
def test_text_contains_little_endian_floats(vector: Any) -> None:
    text = encode_vector(vector)
    assert struct.unpack(f"<{len(vector)}f", b64decode(text)) == tuple(vector.tolist())
    assert decode_vector(text).tolist() == vector.tolist()


def _pool_row(states: list[list[float]], mode: str) -> list[float]:
    """Pool the tokens of one prompt, without padding and without NumPy."""
    columns = list(zip(*states, strict=True))
    count = len(states)
    ranks = range(1, count + 1)
    return {
        "cls": lambda: states[0],
        "lasttoken": lambda: states[-1],
        "max": lambda: [max(each) for each in columns],
        "mean": lambda: [sum(each) / count for each in columns],
        "mean_sqrt_len_tokens": lambda: [sum(each) / math.sqrt(count) for each in columns],
        "weightedmean": lambda: [
            sum(value * rank for value, rank in zip(each, ranks, strict=True)) / sum(ranks)
            for each in columns
        ],
    }[mode]()


@given(_PROMPTS, st.sampled_from(POOLING_MODES), st.integers(0, 2**32 - 1))
def test_padding_does_not_change_an_embedding(
    prompts: list[tuple[int, ...]], mode: str, seed: int
) -> None:
    ids, mask = pad_right(prompts)
    assert [row[: sum(kept)] for row, kept in zip(ids.tolist(), mask.tolist(), strict=True)] == [
        list(each) for each in prompts
    ]
    hidden = np.random.default_rng(seed).standard_normal((*ids.shape, 3)).astype(np.float32)
    pooled = pool(hidden, mask, mode)
    expected = [
        _pool_row(row[: len(prompt)], mode)
        for row, prompt in zip(hidden.tolist(), prompts, strict=True)
    ]
    np.testing.assert_allclose(pooled, expected, rtol=1e-4, atol=1e-5)


def test_unknown_pooling_is_rejected() -> None:
    with pytest.raises(ValueError, match="pooling is 'sum'; it must be one of cls, mean"):
        pool(np.zeros((1, 1, 1)), np.ones((1, 1), dtype=np.int64), "sum")


@given(arrays(np.float32, (2, 3), elements=_VALUES))
def test_normalized_vectors_have_the_length_one_or_zero(vectors: Any) -> None:
    for before, after in zip(vectors, normalize(vectors), strict=True):
        length = float(np.linalg.norm(before.astype(np.float64)))
        if length > 1e-3:
            assert np.linalg.norm(after) == pytest.approx(1, abs=1e-4)
        assert np.all(np.sign(after) * np.sign(before) >= 0)


@pytest.mark.parametrize(
    ("settings", "dimensions", "message"),
    [
        (
            {},
            4,
            "this model supports only 8 dimensions, because its checkpoint sets neither "
            "matryoshka_dimensions nor is_matryoshka; omit dimensions",
        ),
        ({"is_matryoshka": True}, 9, "it must be between 1 and 8"),
        ({"is_matryoshka": True}, 0, "it must be between 1 and 8"),
        (
            {"is_matryoshka": True, "matryoshka_dimensions": (2, 4, 16)},
            3,
            "it must be one of 2, 4, 8$",
        ),
    ],
)
def test_other_sizes_are_rejected(settings: dict[str, Any], dimensions: int, message: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^dimensions is {dimensions}.*{message}"):
        EmbeddingSettings(8, **settings).check_dimensions(dimensions)


def test_declared_sizes_and_the_whole_size_are_accepted() -> None:
    EmbeddingSettings(8).check_dimensions(8)
    EmbeddingSettings(8, is_matryoshka=True).check_dimensions(3)
    EmbeddingSettings(8, is_matryoshka=True, matryoshka_dimensions=(4,)).check_dimensions(4)


def test_shortened_embeddings_are_normalized_again() -> None:
    vector = np.array([3, 4, 12], dtype=np.float32)
    assert shorten(vector, 2, EmbeddingSettings(3, is_normalized=True)).tolist() == pytest.approx(
        [0.6, 0.8]
    )
    assert shorten(vector, 2, EmbeddingSettings(3)).tolist() == [3, 4]
    assert shorten(vector, None, EmbeddingSettings(3, is_normalized=True)) is vector


def test_prompts_are_found_by_name() -> None:
    settings = EmbeddingSettings(8, prompts={"query": "Find: "})
    assert (settings.find_prompt(""), settings.find_prompt("query")) == ("", "Find: ")
    with pytest.raises(InvalidRequest, match=r"'x', but .* available prompts: query"):
        settings.find_prompt("x")
