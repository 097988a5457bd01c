"""Upstream's two tensors of an adapter: encoded, decoded and rejected."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tests.samples.lora_adapters import SITES, as_lists, make_adapter
from trtllm_serve_cli.runtime.lora.adapter import (
    BadAdapter,
    LowRank,
    check_adapter,
    decode_adapter,
    encode_adapter,
)

Q = "model.layers.0.self_attn.q_proj"


@given(
    modules=st.sets(st.sampled_from(sorted(SITES)), min_size=1),
    rank=st.integers(1, 9),
    seed=st.integers(0, 99),
    dtype=st.sampled_from(["float16", "float32"]),
)
def test_decode_adapter_reads_encode_adapter(
    modules: set[str], rank: int, seed: int, dtype: str
) -> None:
    sites = {module: SITES[module] for module in modules}
    adapter = make_adapter(sites, seed=seed, rank=rank)
    weights, config = encode_adapter(adapter, dtype)
    assert as_lists(decode_adapter(weights, config, SITES)) == as_lists(adapter)


def test_layout_is_that_of_tensorrt_llm() -> None:
    adapter = {
        "model.layers.1.mlp.gate_proj": LowRank(np.array([[1.0, 2.0]]), np.array([[3.0]])),
        "model.layers.0.mlp.up_proj": LowRank(np.array([[4.0]]), np.array([[5.0]])),
    }
    weights, config = encode_adapter(adapter)
    assert (weights.dtype, config.dtype) == (np.float16, np.int32)
    assert weights.tolist() == [[4, 5, 0], [1, 2, 3]]
    assert config.tolist() == [[7, 0, 1], [5, 1, 1]]


def test_bfloat16_round_trip() -> None:
    sites = {Q: SITES[Q]}
    adapter = {Q: LowRank(np.full((1, 8), 1.5, np.float32), np.full((8, 1), -2.0, np.float32))}
    weights, config = encode_adapter(adapter, "bfloat16")
    assert weights.dtype == np.dtype("V2")
    assert as_lists(decode_adapter(weights, config, sites)) == as_lists(adapter)


def test_halves_of_a_fused_gate_are_swapped() -> None:
    module = "model.layers.0.mlp.gate_up_proj"
    adapter = {module: LowRank(np.array([[1.0]]), np.array([[2.0], [3.0], [4.0], [5.0]]))}
    weights, config = encode_adapter(adapter)
    assert weights.tolist() == [[1, 4, 5, 2, 3]]
    assert as_lists(decode_adapter(weights, config, {module: (4, 1)})) == as_lists(adapter)


@pytest.mark.parametrize(
    ("module", "value", "why"),
    [
        ("lm_head", 1.0, "the adapter changes lm_head, which has no module id"),
        (Q, 1e6, "the adapter contains values that are too large for float16"),
    ],
)
def test_encode_adapter_rejects_what_the_tensors_cannot_hold(
    module: str, value: float, why: str
) -> None:
    adapter = {module: LowRank(np.array([[value]]), np.array([[1.0]]))}
    with pytest.raises(BadAdapter, match=why):
        encode_adapter(adapter)


def test_encode_adapter_rejects_an_adapter_without_modules() -> None:
    with pytest.raises(BadAdapter, match="changes no modules"):
        encode_adapter({})


@pytest.mark.parametrize("digits", ["9" * 10, "9" * 5000])
def test_encode_adapter_rejects_an_absurd_layer(digits: str) -> None:
    module = f"model.layers.{digits}.self_attn.q_proj"
    with pytest.raises(BadAdapter, match="which has no module id"):
        encode_adapter({module: LowRank(np.array([[1.0]]), np.array([[1.0]]))})


@pytest.mark.parametrize("value", [np.nan, np.inf, np.finfo(np.float32).max])
def test_encode_adapter_rejects_values_that_bfloat16_cannot_hold(value: float) -> None:
    adapter = {Q: LowRank(np.array([[value]], np.float32), np.array([[1.0]], np.float32))}
    with pytest.raises(BadAdapter, match="the adapter contains"):
        encode_adapter(adapter, "bfloat16")


def q_tensors(**changes: Any) -> tuple[Any, Any]:
    """Return one row for q_proj of layer 0 with rank 1, which has 16 values."""
    row = {"weights": [[1.0] * 16], "config": [[1, 0, 1]], **changes}
    return np.array(row["weights"], np.float16), np.array(row["config"], np.int32)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"config": [[1, 0]]}, r"lora_config has shape \[1, 2\]; send a tensor of shape \[n, 3\]"),
        ({"config": np.zeros((0, 3))}, r"lora_config has shape \[0, 3\]"),
        (
            {"weights": [[1.0], [1.0]]},
            r"lora_weights have shape \[2, 1\]; .*each of the 1 rows",
        ),
        ({"config": [[1, 0, 1, 1]]}, "lora_config row 0 uses DoRA"),
        ({"config": [[8, 0, 1]]}, r"row 0 has module id 8; send an id from 0 \(attn_qkv\)"),
        ({"config": [[-1, 0, 1]]}, "row 0 has module id -1"),
        (
            {"config": [[0, 0, 1]]},
            r"module 0 \(attn_qkv\) of layer 0, which this model does not have; send rows for",
        ),
        ({"config": [[1, 2, 1]]}, r"module 1 \(attn_q\) of layer 2, .* of layers 0 to 1"),
        ({"config": [[1, 0, 0]]}, "row 0 has adapter size 0; send a size of at least 1"),
        (
            {"config": [[1, 0, 2]]},
            "row 0 has 16 values, but .* requires 32 values for the adapter size 2",
        ),
        ({"weights": [[1.0] * 17]}, "row 0 has nonzero values after its first 16 values"),
        (
            {"weights": [[1.0] * 16] * 2, "config": [[1, 0, 1]] * 2},
            f"lora_config has several rows for {Q}",
        ),
    ],
)
def test_decode_adapter_rejects_invalid_tensors(changes: Any, why: str) -> None:
    with pytest.raises(BadAdapter, match=why):
        decode_adapter(*q_tensors(**changes), SITES)


def test_decode_adapter_rejects_models_without_known_modules() -> None:
    why = r"row 0 is for module 1 \(attn_q\) of layer 0, but none of this model's modules has"
    with pytest.raises(BadAdapter, match=why):
        decode_adapter(*q_tensors(), {"lm_head": (8, 8)})


@given(
    weights=npst.arrays(
        st.sampled_from([np.float16, np.int8]), npst.array_shapes(min_side=0, max_side=20)
    ),
    config=npst.arrays(
        st.sampled_from([np.int32, np.float32]),
        st.tuples(st.integers(0, 3), st.integers(2, 4)),
        elements=st.integers(-2, 8),
    ),
)
def test_any_tensors_are_decoded_or_rejected(weights: Any, config: Any) -> None:
    with contextlib.suppress(BadAdapter):
        check_adapter(decode_adapter(weights, config, SITES), SITES, 4)


@pytest.mark.parametrize(
    ("module", "a", "b", "why"),
    [
        (
            "model.layers.2.mlp.up_proj",
            (1, 8),
            (12, 1),
            "which this model does not have; use an adapter that",
        ),
        (
            Q,
            (5, 8),
            (8, 5),
            r"has rank 5, but this server accepts only ranks from 1 to 4",
        ),
        (
            Q,
            (1, 9),
            (8, 1),
            "has 9 input features and 8 output features, but this model's module has 8",
        ),
    ],
)
def test_an_adapter_must_fit_the_model(module: str, a: Any, b: Any, why: str) -> None:
    with pytest.raises(BadAdapter, match=why):
        check_adapter({module: LowRank(np.ones(a), np.ones(b))}, SITES, 4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rejects_values_that_are_not_finite(bad: float) -> None:
    adapter = {Q: LowRank(np.full((1, 8), bad), np.ones((8, 1)))}
    with pytest.raises(BadAdapter, match="contains NaN or infinity"):
        check_adapter(adapter, SITES, 4)
