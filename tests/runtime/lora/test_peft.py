"""Adapters from folders, with their scaling applied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.samples.lora_adapters import SITES, as_lists, make_adapter, write_peft
from trtllm_serve_cli.runtime.lora.adapter import BadAdapter, LowRank, encode_adapter
from trtllm_serve_cli.runtime.lora.peft import read_adapter, read_peft
from trtllm_serve_cli.runtime.lora.safetensors import write_safetensors

Q, K = "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.k_proj"


@pytest.mark.parametrize(
    ("config", "scaling"),
    [
        ({"lora_alpha": 8}, {Q: 2.0, K: 2.0}),
        ({"lora_alpha": 8, "use_rslora": True}, {Q: 4.0, K: 4.0}),
        ({"lora_alpha": 8, "alpha_pattern": {"k_proj": 2}}, {Q: 2.0, K: 0.5}),
        ({"lora_alpha": 8, "alpha_pattern": {r"layers\.1\..*_proj": 4}}, {Q: 2.0, K: 1.0}),
    ],
    ids=["alpha", "rslora", "pattern", "regex"],
)
def test_scaling_is_folded_into_b(tmp_path: Path, config: Any, scaling: Any) -> None:
    adapter = make_adapter({Q: SITES[Q], K: SITES[K]}, rank=4)
    read = read_peft(write_peft(tmp_path, adapter, config))
    assert as_lists(read) == as_lists(
        {module: LowRank(each.a, each.b * scaling[module]) for module, each in adapter.items()}
    )


def test_both_formats_give_the_same_adapter(tmp_path: Path) -> None:
    adapter = make_adapter(SITES)
    weights, config = encode_adapter(adapter)
    (tmp_path / "npy").mkdir()
    np.save(tmp_path / "npy" / "model.lora_weights.npy", weights[None])
    np.save(tmp_path / "npy" / "model.lora_config.npy", config[None])
    write_peft(tmp_path / "peft", adapter)
    read = [as_lists(read_adapter(tmp_path / each, SITES)) for each in ("npy", "peft")]
    assert read == [as_lists(adapter)] * 2


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"peft_type": "IA3"}, "is not a LoRA adapter configuration"),
        ({"use_dora": True}, "use_dora, but adapters with DoRA are not supported"),
        ({"modules_to_save": ["lm_head"]}, "but adapters with fully trained modules"),
        ({"bias": "lora_only"}, "bias to 'lora_only', but adapters with trained biases"),
        ({"lora_bias": True}, "lora_bias, but adapters with trained biases"),
        ({"init_lora_weights": "pissa_niter_16"}, "requires modified base weights"),
        ({"lora_alpha": None}, "contains no valid alpha for"),
        ({"lora_alpha": 10**400}, "contains no valid alpha for"),
        ({"alpha_pattern": {"(": 1}}, "contains no valid alpha for"),
    ],
)
def test_rejects_more_than_plain_lora(tmp_path: Path, config: Any, why: str) -> None:
    with pytest.raises(BadAdapter, match=why):
        read_peft(write_peft(tmp_path, make_adapter(SITES), config))


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({}, "contains no tensors"),
        ({"base_model.model.lm_head.weight": (1, 1)}, "lm_head.weight, which is not a LoRA tensor"),
        ({f"{Q}.lora_A.weight": (1, 8)}, "must have one lora_A and one lora_B"),
        ({f"{Q}.lora_A.weight": (1, 8), f"{Q}.lora_B.weight": (8, 2)}, "the shapes must be"),
        ({f"{Q}.lora_A.weight": (0, 8), f"{Q}.lora_B.weight": (8, 0)}, "the shapes must be"),
    ],
)
def test_rejects_tensors_that_are_not_an_adapter(tmp_path: Path, tensors: Any, why: str) -> None:
    write_peft(tmp_path, {})
    data = write_safetensors({name: np.ones(shape) for name, shape in tensors.items()})
    (tmp_path / "adapter_model.safetensors").write_bytes(data)
    with pytest.raises(BadAdapter, match=why):
        read_peft(tmp_path)


def test_rejects_pickled_weights(tmp_path: Path) -> None:
    write_peft(tmp_path, {})
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(BadAdapter, match="pickled weights"):
        read_peft(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_rejects_an_invalid_config(tmp_path: Path, text: str) -> None:
    write_peft(tmp_path, make_adapter(SITES))
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(BadAdapter, match=r"adapter_config\.json"):
        read_peft(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"\x93NUMPY",
        b"PK\x03\x04",
        b"\x93NUMPY\x01\x00\x02\x00(\n",
        b"\x93NUMPY\x01\x00\x04\x00(1,\n",
        b"\x93NUMPY\x01\x00\x04\x001 2\n",
    ],
    ids=["short", "zip", "empty header", "open bracket", "no expression"],
)
def test_rejects_an_invalid_npy_file(tmp_path: Path, content: bytes) -> None:
    for name in ("model.lora_weights.npy", "model.lora_config.npy"):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadAdapter, match="is not a valid NumPy array"):
        read_adapter(tmp_path, SITES)


def test_rejects_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(BadAdapter, match="does not contain an adapter"):
        read_adapter(tmp_path, SITES)
