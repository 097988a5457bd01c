"""Cards by name, and the output of nvidia-smi."""

from __future__ import annotations

import pytest

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.gpus import (
    PresentGpu,
    choose_present,
    find_card,
    load_gpu,
    load_gpus,
    parse_gpu_ids,
    parse_gpus,
)


def test_gpu_table_is_consistent() -> None:
    for gpu in load_gpus().values():
        assert gpu.shown_as
        # Each generation has its formats; half the bits double the rate.
        assert (gpu.fp8 is not None) == (gpu.capability >= (8, 9))
        assert (gpu.fp4 is not None) == (gpu.capability >= (10, 0))
        assert gpu.fp8 is None or gpu.fp8 == pytest.approx(2 * gpu.fp16, rel=0.02)
    shown = [name for gpu in load_gpus().values() for name in gpu.shown_as]
    assert len(shown) == len(set(shown))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h200", "h200"),
        ("H100", "h100-sxm"),
        ("A100", "a100-80gb"),
        ("h100 nvl", "h100-nvl"),
        ("RTX_4090", "rtx-4090"),
        ("NVIDIA A10G", "a10g"),
        ("Tesla T4", "t4"),
        ("rtx4090", "rtx-4090"),
        ("nvidia-h100", "h100-sxm"),
        ("h100-80gb", "h100-sxm"),
        ("NVIDIA-H100-80GB-HBM3", "h100-sxm"),
        ("nvidia-tesla-t4", "t4"),
        ("nvidia-a100-80gb", "a100-80gb"),
        ("a100-80gb-pcie", "a100-80gb-pcie"),
    ],
)
def test_finds_gpu_by_alternative_names(text: str, name: str) -> None:
    assert load_gpu(text).name == name


def test_unknown_gpu_lists_near_matches() -> None:
    with pytest.raises(BadInput) as caught:
        load_gpu("h2000")
    assert caught.value.what == "'h2000' is not a supported GPU."
    assert "h200" in caught.value.why
    assert caught.value.next_step == "pass a supported GPU, for example --gpu h200"


_H200 = "0, NVIDIA H200, 143771, Disabled\n"
_MIG_TABLE = "0, NVIDIA A30, 24576, Disabled\n1, NVIDIA H200, 143771, Enabled\n"
_MIG_LISTING = """\
GPU 0: NVIDIA A30 (UUID: GPU-0)
GPU 1: NVIDIA H200 (UUID: GPU-1)
  MIG 3g.71gb     Device  0: (UUID: MIG-2)
  MIG 1g.18gb     Device  1: (UUID: MIG-3)
"""


def test_parses_gpus() -> None:
    assert parse_gpus(_H200 * 2) == (PresentGpu(0, "NVIDIA H200", 143771),) * 2


def test_parses_mig_devices() -> None:
    assert parse_gpus(_MIG_TABLE, _MIG_LISTING) == (
        PresentGpu(0, "NVIDIA A30", 24576),
        PresentGpu(1, "NVIDIA H200", 143771, ("3g.71gb", "1g.18gb")),
    )


@pytest.mark.parametrize("table", ["", "No devices were found\n", "0, A\n", "x, A, 1, Disabled"])
def test_parses_no_gpus_from_invalid_output(table: str) -> None:
    assert parse_gpus(table) == ()


def test_chooses_the_present_gpu() -> None:
    card, count = choose_present(parse_gpus(_H200 + _H200.replace("143771", "141000")))
    assert (card.name, card.memory_mib, count) == ("h200", 141000, 2)


@pytest.mark.parametrize(
    ("table", "listing", "what"),
    [
        ("", "", "No NVIDIA GPU was found on this machine."),
        (_MIG_TABLE, _MIG_LISTING, "GPU 1 is partitioned into MIG devices."),
        (
            "0, NVIDIA K80, 1, Disabled",
            "",
            "The NVIDIA K80 GPU in this machine is not supported.",
        ),
        (
            _H200 + _MIG_TABLE.splitlines()[0],
            "",
            "The GPUs in this machine have different types.",
        ),
    ],
)
def test_rejects_present_gpus_that_cannot_be_planned(table: str, listing: str, what: str) -> None:
    with pytest.raises(BadInput) as caught:
        choose_present(parse_gpus(table, listing))
    assert caught.value.what == what


def test_find_card_returns_none_for_unknown_gpu() -> None:
    assert find_card("NVIDIA K80") is None


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        (None, ()),
        ("", ()),
        ("0", ("0",)),
        ("0, 1", ("0", "1")),
        ("MIG-GPU-0a/1/0", ("MIG-GPU-0a/1/0",)),
    ],
)  # fmt: skip
def test_gpus_by_index_and_by_id(text, gpus) -> None:
    assert parse_gpu_ids(text) == gpus


@pytest.mark.parametrize("text", ["all", "0,,1", "0;1", "-1", "0,0"])
def test_invalid_gpus_are_rejected(text) -> None:
    with pytest.raises(BadInput):
        parse_gpu_ids(text)


def test_suggestions_start_with_cards_of_the_same_model() -> None:
    with pytest.raises(BadInput) as caught:
        load_gpu("nvidia-h100-96gb")
    assert caught.value.why.startswith(
        "supported GPUs with similar names: h100-pcie, h100-sxm, h100-nvl"
    )
