from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.samples.lora_adapters import SITES, make_adapter, write_converted, write_peft
from trtllm_serve_cli.client.generate import RawTensor
from trtllm_serve_cli.client.lora import convert_weights, load_adapter
from trtllm_serve_cli.client.model_info import LoraDatatype
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.runtime.lora.adapter import LowRank, encode_adapter, narrow_weights
from trtllm_serve_cli.runtime.lora.file_names import LORA_CONFIG, LORA_WEIGHTS


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_loads_adapter_as_tensors(tmp_path: Path, dtype: str) -> None:
    write_converted(tmp_path, dtype)
    assert load_adapter(tmp_path) == (
        RawTensor((1, 2, 4), np.arange(1, 9, dtype="<f2").tobytes()),
        RawTensor((1, 2, 3), np.ones(6, dtype="<i4").tobytes()),
    )


def test_loads_adapter_in_pefts_format(tmp_path: Path) -> None:
    adapter = make_adapter(SITES, rank=3)
    write_peft(tmp_path, adapter, {"lora_alpha": 6})
    doubled = {name: LowRank(each.a, each.b * 2) for name, each in adapter.items()}
    weights, config = encode_adapter(doubled)
    assert load_adapter(tmp_path) == (
        RawTensor((1, *weights.shape), weights.tobytes()),
        RawTensor((1, *config.shape), config.tobytes()),
    )


@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
def test_converts_weights_to_the_type_of_the_engine(tmp_path: Path, stored: str) -> None:
    write_converted(tmp_path)
    values = np.arange(1, 9, dtype=np.float32).reshape(1, 2, 4)
    np.save(tmp_path / LORA_WEIGHTS, narrow_weights(values, stored))
    halves, _ = load_adapter(tmp_path)
    types: dict[LoraDatatype, str] = {"FP16": "float16", "BF16": "bfloat16", "FP32": "float32"}
    for datatype, dtype in types.items():
        weights, _ = load_adapter(tmp_path, datatype)
        assert weights == RawTensor((1, 2, 4), narrow_weights(values, dtype).tobytes())
        assert convert_weights(halves, datatype) == weights


def test_rejects_weights_that_are_too_large(tmp_path: Path) -> None:
    write_converted(tmp_path)
    np.save(tmp_path / LORA_WEIGHTS, np.full((1, 2, 4), 1e6, np.float32))
    with pytest.raises(BadInput) as raised:
        load_adapter(tmp_path)
    assert raised.value.why == "the adapter contains values that are too large for float16"


def test_adds_missing_batch_dimension(tmp_path: Path) -> None:
    np.save(tmp_path / LORA_WEIGHTS, np.ones((2, 4), dtype="<f2"))
    np.save(tmp_path / LORA_CONFIG, np.ones((2, 3), dtype="<i4"))
    weights, config = load_adapter(tmp_path)
    assert (weights.shape, config.shape) == ((1, 2, 4), (1, 2, 3))


def test_missing_adapter_suggests_lora_convert(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"model.lora_weights.npy cannot be read") as raised:
        load_adapter(tmp_path)
    assert raised.value.why == "No such file or directory"
    assert "tllm lora convert" in raised.value.next_step


@pytest.mark.parametrize(
    "weights",
    [np.ones((1, 2, 4), dtype=np.int8), np.ones(4, dtype="<f2"), np.ones((3, 2, 4), dtype="<f2")],
    ids=["integers", "one dimension", "a batch"],
)
def test_rejects_arrays_that_are_not_adapters(tmp_path: Path, weights: NDArray[Any]) -> None:
    write_converted(tmp_path)
    np.save(tmp_path / LORA_WEIGHTS, weights)
    with pytest.raises(BadInput, match="is not a valid LoRA adapter file"):
        load_adapter(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"not an array", b"\x93NUMPY", b"\x93NUMPY\x01\x00\x02\x00((", b"PK\x03\x04 an archive"],
)
def test_rejects_files_that_are_not_arrays(tmp_path: Path, content: bytes) -> None:
    write_converted(tmp_path)
    (tmp_path / LORA_CONFIG).write_bytes(content)
    with pytest.raises(BadInput, match=r"model.lora_config.npy cannot be read"):
        load_adapter(tmp_path)


def test_rejects_files_of_different_adapters(tmp_path: Path) -> None:
    write_converted(tmp_path, num_rows=3)
    with pytest.raises(BadInput, match="do not match"):
        load_adapter(tmp_path)
