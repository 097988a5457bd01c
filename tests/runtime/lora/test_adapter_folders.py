"""Adapters from all sources as folders in PEFT format."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.samples.lora_adapters import SITES, as_lists, make_adapter, write_peft
from trtllm_serve_cli.runtime.engine import GenerationRequest, InvalidRequest
from trtllm_serve_cli.runtime.lora.adapter import Adapter, BadAdapter, Sites, encode_adapter
from trtllm_serve_cli.runtime.lora.adapter_folders import (
    AdapterFolders,
    as_peft,
    site_finder,
)
from trtllm_serve_cli.runtime.lora.adapter_request import LoraOptions
from trtllm_serve_cli.runtime.lora.file_names import LORA_CONFIG, LORA_WEIGHTS
from trtllm_serve_cli.runtime.lora.peft import read_peft
from trtllm_serve_cli.runtime.lora.safetensors import write_safetensors

PIRATE = make_adapter(SITES, ["q_proj", "v_proj"], seed=1)


def request(**fields: Any) -> GenerationRequest:
    return GenerationRequest(1, (5,), 3, **fields)


def send(adapter: Adapter, file: Path) -> str:
    weights, config = encode_adapter(adapter)
    with file.open("wb") as opened:
        np.save(opened, weights)
        np.save(opened, config)
    return str(file)


def folders(tmp_path: Path, **options: Any) -> AdapterFolders:
    made = tmp_path / "made"
    made.mkdir()
    return AdapterFolders(LoraOptions(**options), lambda: SITES, made)


def test_find_returns_none_for_a_plain_request(tmp_path: Path) -> None:
    assert folders(tmp_path).find(request()) is None


def test_prefetched_folders_are_used_in_place(tmp_path: Path) -> None:
    write_peft(tmp_path / "all" / "007", PIRATE)
    write_peft(tmp_path / "all" / "pirate", PIRATE)
    known = folders(tmp_path, lora_prefetch_dir=str(tmp_path / "all"))
    by_number, by_name = (
        known.find(request(lora_task_id=7)),
        known.find(request(lora_name="pirate")),
    )
    assert by_number is not None and by_name is not None
    assert by_number.folder == tmp_path / "all" / "007"
    assert {by_number.number, by_name.number} == {1, 2}


def test_prefetched_tensors_are_converted_to_a_folder(tmp_path: Path) -> None:
    weights, config = encode_adapter(PIRATE)
    (tmp_path / "all" / "7").mkdir(parents=True)
    np.save(tmp_path / "all" / "7" / LORA_WEIGHTS, weights)
    np.save(tmp_path / "all" / "7" / LORA_CONFIG, config)
    known = folders(tmp_path, lora_prefetch_dir=str(tmp_path / "all")).find(request(lora_task_id=7))
    assert known is not None
    assert as_lists(read_peft(known.folder)) == as_lists(PIRATE)


def test_an_adapter_is_copied_from_a_folder_on_the_server(tmp_path: Path) -> None:
    write_peft(tmp_path / "poet", PIRATE)
    known = folders(tmp_path, lora_cache_host_memory_bytes=1)
    for number in range(2):
        sending = request(lora_name=f"poet-{number}", lora_file=str(tmp_path / "poet"))
        found = known.find(sending)
        known.release(sending)
    # The first adapter has been evicted, but the folder on the server still exists.
    assert found is not None and found.folder.parent == tmp_path / "made"
    assert len([*(tmp_path / "made").iterdir()]) == 1
    assert as_lists(read_peft(tmp_path / "poet")) == as_lists(PIRATE)


def test_a_sent_adapter_stays_known(tmp_path: Path) -> None:
    known = folders(tmp_path)
    file = send(PIRATE, tmp_path / "sent")
    first = known.find(request(lora_task_id=7, lora_file=file))
    assert first is not None and not Path(file).exists()
    assert as_lists(read_peft(first.folder)) == as_lists(PIRATE)
    assert known.find(request(lora_task_id=7)) == first


def test_an_unreadable_adapter_is_rejected_with_the_reason(tmp_path: Path) -> None:
    def fail() -> Sites:
        raise OSError("obtaining file position failed")

    known = AdapterFolders(LoraOptions(), fail, tmp_path)
    with pytest.raises(InvalidRequest) as raised:
        known.find(request(lora_task_id=7, lora_file=send(PIRATE, tmp_path / "sent")))
    assert str(raised.value) == (
        "the adapter cannot be read (obtaining file position failed); check the adapter files on "
        "the server"
    )


def test_the_least_recently_used_adapter_is_evicted(tmp_path: Path) -> None:
    known = folders(tmp_path, lora_cache_host_memory_bytes=4000)
    for number in (1, 2, 1, 3):
        sending = request(lora_task_id=number, lora_file=send(PIRATE, tmp_path / "sent"))
        known.find(sending)
        known.release(sending)
    assert known.find(request(lora_task_id=1)) and known.find(request(lora_task_id=3))
    with pytest.raises(InvalidRequest, match="LoRA task 2 not found in cache"):
        known.find(request(lora_task_id=2))


def test_a_deleted_folder_does_not_affect_other_adapters(tmp_path: Path) -> None:
    """The system may clean its temporary folder while the server runs."""
    known = folders(tmp_path, lora_cache_host_memory_bytes=1)
    for number in (1, 2):
        sending = request(lora_task_id=number, lora_file=send(PIRATE, tmp_path / "sent"))
        found = known.find(sending)
        known.release(sending)
        assert found is not None and found.folder.is_dir()
        shutil.rmtree(found.folder)
    with pytest.raises(InvalidRequest, match="LoRA task 1 not found in cache"):
        known.find(request(lora_task_id=1))


def test_an_adapter_in_use_is_not_evicted(tmp_path: Path) -> None:
    """The engine may read the folder at any time until the request ends."""
    known = folders(tmp_path, lora_cache_host_memory_bytes=1)
    requests = [
        GenerationRequest(number, (5,), 3, lora_task_id=number % 3) for number in (1, 2, 3, 4)
    ]

    def find(each: GenerationRequest) -> Path:
        file = send(PIRATE, tmp_path / "sent")
        found = known.find(dataclasses.replace(each, lora_file=file))
        assert found is not None
        return found.folder

    first, second = find(requests[0]), find(requests[1])
    # Two requests for the task 1, of which one ends.
    assert find(requests[3]) == first
    known.release(requests[0])
    known.release(requests[1])
    third = find(requests[2])
    assert [each.exists() for each in (first, second, third)] == [True, False, True]
    known.release(requests[3])
    known.release(request(lora_task_id=99))
    assert find(requests[1]).exists()
    assert not first.exists()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"lora_task_id": 9}, "LoRA task 9 not found in cache"),
        ({"lora_name": "monk"}, "no adapter with the lora_name 'monk' is available"),
        ({"lora_task_id": 9, "lora_file": "/gone"}, "LoRA task 9 not found in cache"),
        (
            {"lora_name": "monk", "lora_file": "/gone"},
            "a file of the adapter 'monk' is missing; restore the adapter folder on the server",
        ),
    ],
)
def test_rejects_an_unknown_adapter(tmp_path: Path, fields: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        folders(tmp_path).find(request(**fields))


def test_rejects_an_adapter_whose_rank_is_too_high(tmp_path: Path) -> None:
    known = folders(tmp_path, lora_cache_max_adapter_size=1)
    file = send(PIRATE, tmp_path / "sent")
    with pytest.raises(InvalidRequest, match="has rank"):
        known.find(request(lora_task_id=7, lora_file=file))


def test_an_unfit_prefetched_adapter_fails_the_load(tmp_path: Path) -> None:
    write_peft(tmp_path / "all" / "pirate", PIRATE)
    with pytest.raises(BadAdapter, match="pirate cannot be served"):
        folders(tmp_path, lora_prefetch_dir=str(tmp_path / "all"), lora_cache_max_adapter_size=1)


def test_modules_of_several_ranks_get_the_highest(tmp_path: Path) -> None:
    q = make_adapter(SITES, ["q_proj"], rank=1)
    v = make_adapter(SITES, ["v_proj"], rank=3)
    config, weights = as_peft({**q, **v})
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (
        3, 3, ["q_proj", "v_proj"],
    )  # fmt: skip
    (tmp_path / "adapter_model.safetensors").write_bytes(weights)
    (tmp_path / "adapter_config.json").write_text('{"r": 3, "lora_alpha": 3}')
    read = read_peft(tmp_path)
    for module, change in q.items():
        assert np.array_equal(read[module].b @ read[module].a, change.b @ change.a)


def test_sites_are_the_linear_layers_of_the_checkpoint(tmp_path: Path) -> None:
    tensors = {f"{module}.weight": np.zeros(size) for module, size in SITES.items()}
    tensors["model.norm.weight"] = np.zeros(8)
    (tmp_path / "model.safetensors").write_bytes(write_safetensors(tensors))
    assert site_finder(tmp_path)() == SITES


def test_rejects_a_checkpoint_without_safetensors(tmp_path: Path) -> None:
    with pytest.raises(BadAdapter, match="has no safetensors files"):
        site_finder(tmp_path)()


def test_rejects_a_damaged_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(BadAdapter, match=r"because .*model\.safetensors is not a complete"):
        site_finder(tmp_path)()


def test_damaged_checkpoint_fails_the_request(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    known = AdapterFolders(LoraOptions(), site_finder(tmp_path), tmp_path)
    with pytest.raises(InvalidRequest, match="restore the checkpoint on the server"):
        known.find(request(lora_task_id=7, lora_file=send(PIRATE, tmp_path / "sent")))


@pytest.mark.parametrize("num_bytes", [0, 5, 200])
def test_incomplete_file_fails_the_request(tmp_path: Path, num_bytes: int) -> None:
    file = Path(send(PIRATE, tmp_path / "sent"))
    file.write_bytes(file.read_bytes()[:num_bytes])
    with pytest.raises(InvalidRequest, match=r"is incomplete .*; send the request again"):
        folders(tmp_path).find(request(lora_task_id=7, lora_file=str(file)))


def test_rejects_an_adapter_without_modules() -> None:
    with pytest.raises(BadAdapter, match="changes no modules"):
        as_peft({})
