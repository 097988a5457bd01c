"""Formats, and the GPUs that support them."""

from __future__ import annotations

import pytest

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.gpus import load_gpu
from trtllm_serve_cli.sizing.precision import (
    WEIGHT_FORMATS,
    check_runs,
    name_weight_format,
    read_quantization_word,
)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("float16", "v100"),
        ("bfloat16", "a100"),
        ("int8_sq", "t4"),
        ("fp8", "l4"),
        ("w4a8_awq", "l40s"),
        ("mxfp4", "h100"),
        ("nvfp4", "b200"),
    ],
)
def test_format_runs_on_its_first_generation(name: str, first: str) -> None:
    check_runs(name, WEIGHT_FORMATS[name], load_gpu(first), "")


def test_rejects_gpu_without_the_format() -> None:
    with pytest.raises(BadInput) as caught:
        check_runs("fp8 weights", WEIGHT_FORMATS["fp8"], load_gpu("a100"), "--quantization int8")
    assert str(caught.value) == (
        "The a100-80gb GPU does not support fp8 weights.\n"
        "Why: the format requires compute capability 8.9, but the GPU has 8.0\n"
        "Next: --quantization int8"
    )


@pytest.mark.parametrize(
    ("word", "name"),
    [("awq", "int4_awq"), ("gptq", "int4_gptq"), ("fp8", "fp8"), ("bitsandbytes", None)],
)
def test_translates_checkpoint_formats(word: str, name: str | None) -> None:
    assert name_weight_format(word) == name


def group(kind: str, num_bits: object) -> dict[str, object]:
    return {"targets": ["Linear"], "weights": {"type": kind, "num_bits": num_bits}}


@pytest.mark.parametrize(
    ("groups", "word"),
    [
        ({"group_0": group("float", 8)}, "fp8"),
        ({"group_0": group("int", 8)}, "int8"),
        ({"group_0": group("int", 4), "group_1": group("int", 4)}, "int4"),
        ({"group_0": group("int", 4), "group_1": group("float", 8)}, "compressed-tensors"),
        ({"group_0": group("int", 2)}, "compressed-tensors"),
        ({"group_0": group("int", [4])}, "compressed-tensors"),
        ({"group_0": {"weights": None}}, "compressed-tensors"),
        (["group_0"], "compressed-tensors"),
        (None, "compressed-tensors"),
    ],
)
def test_format_of_compressed_tensors(groups: object, word: str) -> None:
    config = {"quant_method": "compressed-tensors", "config_groups": groups}
    assert read_quantization_word(config) == word
