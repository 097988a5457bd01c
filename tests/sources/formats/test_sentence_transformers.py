"""Embedding models in the format of sentence-transformers."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.samples.checkpoints import hf_files, write_files
from tests.samples.embedding_models import embedding_files
from trtllm_serve_cli.build.checkpoint_facts import read_context_length
from trtllm_serve_cli.errors import SourceError
from trtllm_serve_cli.runtime.embedding_settings import EmbeddingSettings
from trtllm_serve_cli.sources.checkpoint import Checkpoint, FetchOptions, inspect_hf_directory
from trtllm_serve_cli.sources.formats.sentence_transformers import read_embedding, read_max_length


def inspect(folder: Path) -> Checkpoint:
    return inspect_hf_directory(folder, source="local:x", options=FetchOptions())


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta"},
        {"architectures": ["MPNetForMaskedLM"], "model_type": "mpnet"},
        {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    ],
)
def test_embedding_models_are_recognized(tmp_path: Path, config: dict[str, Any]) -> None:
    checkpoint = inspect(write_files(tmp_path, embedding_files(**config)))
    assert checkpoint.is_embedding_model
    assert (
        checkpoint.architecture == (config or {"architectures": ["BertModel"]})["architectures"][0]
    )


def test_other_checkpoints_generate_text(tmp_path: Path) -> None:
    assert not inspect(write_files(tmp_path, hf_files())).is_embedding_model


def test_an_encoder_without_modules_is_rejected(tmp_path: Path) -> None:
    files = embedding_files()
    del files["modules.json"]
    with pytest.raises(SourceError, match="not a text-generation model") as caught:
        inspect(write_files(tmp_path, files))
    assert "lacks modules.json" in caught.value.why


def test_settings_are_read(tmp_path: Path) -> None:
    files = embedding_files(prompts={"query": "Find: ", "document": ""}, is_matryoshka=True)
    assert read_embedding(write_files(tmp_path, files)) == EmbeddingSettings(
        dimension=8,
        pooling="mean",
        is_normalized=True,
        is_matryoshka=True,
        prompts={"query": "Find: "},
    )


def test_sizes_of_matryoshka_embeddings_are_sorted(tmp_path: Path) -> None:
    folder = write_files(tmp_path, embedding_files(matryoshka_dimensions=[4, 2]))
    settings = read_embedding(folder)
    assert (settings.is_matryoshka, settings.matryoshka_dimensions) == (True, (2, 4))


@pytest.mark.parametrize(
    ("pooling", "mode"),
    [
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "lasttoken"),
        ({"pooling_mode": "max"}, "max"),
        ({"pooling_mode": ["mean"]}, "mean"),
    ],
)
def test_pooling_is_a_flag_or_a_name(tmp_path: Path, pooling: dict[str, Any], mode: str) -> None:
    files = embedding_files(pooling=pooling, modules=("Transformer", "Pooling"))
    settings = read_embedding(write_files(tmp_path, files))
    assert (settings.pooling, settings.dimension, settings.is_normalized) == (mode, 8, False)


def test_prompts_that_the_pooling_excludes_are_not_offered(tmp_path: Path) -> None:
    pooling = {"pooling_mode_mean_tokens": True, "include_prompt": False}
    files = embedding_files(pooling=pooling, prompts={"query": "Find: "})
    assert read_embedding(write_files(tmp_path, files)).prompts == {}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"modules": ("Transformer", "Pooling", "Dense")}, "lists the Dense module"),
        ({"modules": ("Transformer",)}, "does not list a Pooling module"),
        ({"pooling": {"pooling_mode": ["cls", "mean"]}}, "sets the pooling mode to cls and mean"),
        ({"pooling": {"pooling_mode": "sum"}}, "sets the pooling mode to sum"),
        ({"transformer": {"do_lower_case": True}}, "sets do_lower_case"),
    ],
)
def test_unsupported_modules_are_rejected(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(SourceError, match="is not supported") as caught:
        inspect(write_files(tmp_path, embedding_files(**changes)))
    assert why in caught.value.why


@pytest.mark.parametrize("text", [b"{", b"[1]", b"{}", b'[{"path": "x"}]'])
def test_broken_modules_are_rejected(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(SourceError):
        inspect(write_files(tmp_path, embedding_files() | {"modules.json": text}))


def test_paths_outside_the_checkpoint_are_rejected(tmp_path: Path) -> None:
    files = embedding_files()
    files["modules.json"] = files["modules.json"].replace(b"1_Pooling", b"../1_Pooling")
    with pytest.raises(SourceError, match="cannot be used"):
        inspect(write_files(tmp_path / "a", files))


@pytest.mark.parametrize(
    ("config", "transformer", "length"),
    [
        ({}, {}, 32),
        ({"max_position_embeddings": 16}, {}, 16),
        ({}, {"max_seq_length": None}, 64),
        ({"model_type": "xlm-roberta", "pad_token_id": 1}, {"max_seq_length": 512}, 62),
    ],
)
def test_maximum_length(
    tmp_path: Path, config: dict[str, Any], transformer: dict[str, Any], length: int
) -> None:
    folder = write_files(tmp_path, embedding_files(transformer=transformer, **config))
    assert read_max_length(folder) == read_context_length(folder) == length


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
_KEYS = {
    "config.json": (
        "model_type", "pad_token_id", "hidden_size", "max_position_embeddings",
        "matryoshka_dimensions", "is_matryoshka",
    ),
    "1_Pooling/config.json": (
        "pooling_mode", "pooling_mode_cls_token", "include_prompt", "word_embedding_dimension",
    ),
    "sentence_bert_config.json": ("max_seq_length", "do_lower_case"),
    "config_sentence_transformers.json": ("prompts",),
    "modules.json": (),
}  # fmt: skip


@given(st.sampled_from(sorted(_KEYS)), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_json_is_read_or_rejected(tmp_path: Path, name: str, data: st.DataObject) -> None:
    files = embedding_files()
    if keys := _KEYS[name]:
        changes = data.draw(st.dictionaries(st.sampled_from(keys), _JSON, min_size=1))
        content = {**json.loads(files[name]), **changes}
    else:
        content = data.draw(_JSON | st.lists(st.fixed_dictionaries({"type": _JSON, "path": _JSON})))
    write_files(tmp_path, files | {name: json.dumps(content).encode()})
    with contextlib.suppress(SourceError):
        found = read_embedding(tmp_path)
        assert EmbeddingSettings.from_dict(json.loads(found.to_json())) == found
        assert found.dimension > 0
    with contextlib.suppress(SourceError, ValueError):
        assert read_max_length(tmp_path) > 0
