"""Tests of the command `tllm lora convert`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import Tllm
from tests.fakes.hub import FakeHub, serve
from tests.samples.lora_adapters import SITES, make_adapter, write_peft


@pytest.fixture
def tllm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tllm:
    return Tllm(monkeypatch, capsys)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_peft(tmp_path / "in", make_adapter(SITES, ["q_proj"]))


def test_convert_writes_both_files(tllm: Tllm, tmp_path: Path, source: Path) -> None:
    code, out, err = tllm("lora", "convert", str(source), str(tmp_path / "out"))
    assert (code, out) == (0, "")
    assert err.endswith("out: q_proj in 2 layers; rank 2; 0.0 MB of float16 weights.\n")
    names = sorted(each.name for each in (tmp_path / "out").iterdir())
    assert names == ["model.lora_config.npy", "model.lora_weights.npy"]


def test_dry_run_writes_nothing(tllm: Tllm, tmp_path: Path, source: Path) -> None:
    target = str(tmp_path / "out")
    code, out, _ = tllm("lora", "convert", str(source), target, "--dry-run", "--json")
    assert (code, json.loads(out)["model.lora_weights.npy"]) == (0, [1, 2, 32])
    assert not (tmp_path / "out").exists()


def test_folder_without_an_adapter_is_refused(tllm: Tllm, tmp_path: Path) -> None:
    code, _, err = tllm("lora", "convert", str(tmp_path), str(tmp_path / "out"))
    assert (code, "does not contain a PEFT adapter" in err) == (3, True)


def test_adapter_is_fetched_from_the_hub(
    tllm: Tllm, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    files = {each.name: each.read_bytes() for each in source.iterdir()}
    with serve(FakeHub(files, repository="acme/adapter")) as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        code, _, err = tllm("lora", "convert", "hf:acme/adapter", str(tmp_path / "out"))
    assert (code, "q_proj in 2 layers" in err) == (0, True)


def test_repository_without_an_adapter_is_refused(
    tllm: Tllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with serve(FakeHub({"config.json": b"{}"})) as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        code, _, err = tllm("lora", "convert", "hf:acme/tiny", str(tmp_path / "out"))
    assert (code, "hf:acme/tiny does not contain a LoRA adapter" in err) == (3, True)
