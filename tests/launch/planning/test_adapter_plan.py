from __future__ import annotations

from pathlib import Path

import pytest

from tests.samples.lora_adapters import SITES, make_adapter, write_converted, write_peft
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedAdapter
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.launch.planning.adapter_plan import (
    check_runtime_folder,
    list_adapter_folders,
    plan_adapters,
)


@pytest.fixture
def poet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the adapter `poet` in the current folder, and return its absolute path."""
    monkeypatch.chdir(tmp_path)
    return write_converted(tmp_path / "poet")


def test_adapters_have_a_name_a_folder_and_a_base_model(poet: Path) -> None:
    write_peft(poet.parent / "peft", make_adapter(SITES))
    assert plan_adapters(["acme/poet=poet", "p:2=peft"], ["demo"]) == (
        ServedAdapter("acme/poet", str(poet), "demo"),
        ServedAdapter("p:2", str(poet.parent / "peft"), "demo"),
    )
    # A model that several servers serve has several entries.
    assert plan_adapters(["a:poet=poet"], ["a", "b", "a"]) == (
        ServedAdapter("poet", str(poet), "a"),
    )


@pytest.mark.parametrize(
    ("words", "models", "message", "next_step"),
    [
        (["poet"], ["a"], "The --lora value poet is not valid", "--lora poet=/srv/adapters/poet"),
        (["=poet"], ["a"], "=poet is not valid", "--lora poet="),
        (["a b=poet"], ["a"], "a b=poet is not valid", "--lora poet="),
        (["poet=poet"], ["a", "b"], "does not specify the base model", "--lora a:poet=poet"),
        (["a=poet"], ["a"], "uses the name 'a'", "choose another name"),
        (["x=poet", "x=poet"], ["a"], "uses the name 'x'", "choose another name"),
        (["x=missing"], ["a"], "missing does not contain a LoRA adapter", "tllm lora convert"),
        (["x=."], ["a"], "does not contain a LoRA adapter", "tllm lora convert"),
    ],
)
@pytest.mark.usefixtures("poet")
def test_invalid_adapters(
    words: list[str], models: list[str], message: str, next_step: str
) -> None:
    with pytest.raises(BadInput, match=message) as raised:
        plan_adapters(words, models)
    assert next_step in raised.value.next_step


def test_folder_of_adapters_must_exist_and_belongs_to_one_process(tmp_path: Path) -> None:
    assert check_runtime_folder(LaunchOptions()) is None
    assert check_runtime_folder(LaunchOptions(runtime_lora_dir=tmp_path)) == str(tmp_path)
    with pytest.raises(BadInput, match="is not a folder") as missing:
        check_runtime_folder(LaunchOptions(runtime_lora_dir=tmp_path / "missing"))
    assert "--runtime-lora-dir" in missing.value.next_step
    with pytest.raises(BadInput, match="run in a single process"):
        check_runtime_folder(LaunchOptions(runtime_lora_dir=tmp_path, openai_processes=2))


def test_paths_are_normalized_without_following_links(poet: Path) -> None:
    """Containers and pods mount the paths, which therefore must not contain `..`."""
    link = poet.parent / "link"
    link.symlink_to(poet)
    (adapter,) = plan_adapters(["poet=poet/../link"], ["demo"])
    assert adapter.folder == str(link)
    options = LaunchOptions(runtime_lora_dir=Path("poet/../link"))
    assert check_runtime_folder(options) == str(link)


def test_engine_reads_the_adapters_the_runtime_folder_and_targets_of_links(poet: Path) -> None:
    blobs = poet.parent / "blobs"
    blobs.mkdir()
    weights = next(poet.glob("*weights.npy"))
    (poet / "weights").symlink_to(weights.rename(blobs / weights.name))
    tenants = poet.parent / "tenants"
    tenants.mkdir()
    # A link that a client's adapter contains must not mount a folder of this machine.
    (tenants / "link").symlink_to("/etc/passwd")
    config = GatewayConfig(
        (), adapters=(ServedAdapter("p", str(poet), "m"),), runtime_lora_dir=str(tenants)
    )
    assert list_adapter_folders(config) == (poet, blobs, tenants)
    assert list_adapter_folders(GatewayConfig(())) == list_adapter_folders(None) == ()
