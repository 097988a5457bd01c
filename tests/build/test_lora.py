"""Conversion of PEFT adapters into upstream's two files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.samples.lora_adapters import SITES, as_lists, make_adapter, write_peft
from trtllm_serve_cli.build.lora import convert_lora, write_lora
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.runtime.lora.adapter import LowRank
from trtllm_serve_cli.runtime.lora.peft import read_adapter


@given(seed=st.integers(0, 99), rank=st.integers(1, 8), alpha=st.sampled_from([1, 4, 16]))
def test_files_hold_the_adapter_with_its_scaling(
    tmp_path_factory: pytest.TempPathFactory, seed: int, rank: int, alpha: int
) -> None:
    folder = tmp_path_factory.mktemp("lora")
    adapter = make_adapter(SITES, seed=seed, rank=rank)
    source = write_peft(folder / "in", adapter, {"lora_alpha": alpha})
    write_lora(convert_lora(source, folder / "out", "float32"), force=False)
    scaling = np.float32(alpha / rank)
    assert as_lists(read_adapter(folder / "out", SITES)) == as_lists(
        {module: LowRank(each.a, each.b * scaling) for module, each in adapter.items()}
    )


def test_files_are_described(tmp_path: Path) -> None:
    source = write_peft(tmp_path / "in", make_adapter(SITES, ["q_proj", "up_proj"], rank=3))
    files = convert_lora(source, tmp_path / "out", "float16")
    assert files.as_dict() == {
        "source": str(source),
        "destination": str(tmp_path / "out"),
        "dtype": "float16",
        "modules": {"q_proj": 2, "up_proj": 2},
        "adapter_sizes": [3],
        "model.lora_weights.npy": [1, 4, 60],
        "model.lora_config.npy": [1, 4, 3],
    }
    assert not (tmp_path / "out").exists()


def test_a_folder_without_an_adapter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not contain a PEFT adapter"):
        convert_lora(tmp_path, tmp_path / "out", "float16")


def test_missing_weights_are_named(tmp_path: Path) -> None:
    source = write_peft(tmp_path, make_adapter(SITES))
    (source / "adapter_model.safetensors").unlink()
    with pytest.raises(BadInput, match=r"adapter_model\.safetensors is missing"):
        convert_lora(source, tmp_path / "out", "float16")


def test_unsupported_adapter_is_refused_with_the_reason(tmp_path: Path) -> None:
    source = write_peft(tmp_path, make_adapter(SITES), {"use_dora": True})
    with pytest.raises(BadInput, match="adapters with DoRA are not supported"):
        convert_lora(source, tmp_path / "out", "float16")


def test_an_adapter_is_replaced_only_with_force(tmp_path: Path) -> None:
    source = write_peft(tmp_path / "in", make_adapter(SITES))
    files = convert_lora(source, tmp_path / "out", "float16")
    write_lora(files, force=False)
    with pytest.raises(BadInput, match="already contains an adapter"):
        write_lora(files, force=False)
    write_lora(files, force=True)


def test_file_is_not_replaced(tmp_path: Path) -> None:
    source = write_peft(tmp_path / "in", make_adapter(SITES))
    (tmp_path / "out").touch()
    with pytest.raises(BadInput, match="out is not a folder") as raised:
        write_lora(convert_lora(source, tmp_path / "out", "float16"), force=True)
    assert raised.value.next_step.endswith(f"{tmp_path}/out-lora")


def test_another_folder_is_never_replaced(tmp_path: Path) -> None:
    source = write_peft(tmp_path / "in", make_adapter(SITES))
    with pytest.raises(BadInput, match="contains files that are not part of an adapter"):
        write_lora(convert_lora(source, tmp_path / "in", "float16"), force=True)
