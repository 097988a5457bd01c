from __future__ import annotations

import json

import pytest

from tests.samples.checkpoints import gguf, hf_files, llama_gguf, safetensors, write_files
from trtllm_serve_cli.errors import SourceError, UnsafeCheckpoint
from trtllm_serve_cli.sources.checkpoint import (
    Checkpoint,
    FetchOptions,
    inspect_gguf,
    inspect_hf_directory,
)


def inspect(folder, **options):
    return inspect_hf_directory(folder, source="local:x", options=FetchOptions(**options))


def index(*shards: str) -> bytes:
    return json.dumps({"weight_map": dict(zip("abcdefgh", shards, strict=False))}).encode()


def test_inspects_hf_folder(tmp_path):
    write_files(tmp_path, hf_files())
    assert inspect(tmp_path) == Checkpoint(
        tmp_path, "hf", "local:x", None, "LlamaForCausalLM", len(safetensors())
    )


def test_sharded_weights_are_listed_in_the_index(tmp_path):
    files = hf_files() | {"a.safetensors": safetensors(), "b.safetensors": safetensors(9)}
    del files["model.safetensors"]
    weight_map = {"weight_map": {"w": "a.safetensors"}}
    files["model.safetensors.index.json"] = json.dumps(weight_map).encode()
    assert inspect(write_files(tmp_path, files)).size_bytes == len(safetensors())


def test_rejects_index_with_other_tensors(tmp_path):
    files = hf_files() | {"a.safetensors": safetensors()}
    del files["model.safetensors"]
    weight_map = {"weight_map": {"w": "a.safetensors", "v": "a.safetensors"}}
    files["model.safetensors.index.json"] = json.dumps(weight_map).encode()
    with pytest.raises(SourceError) as caught:
        inspect(write_files(tmp_path, files))
    assert str(caught.value) == (
        f"Tensors are missing from {tmp_path}/a.safetensors (1 of 2).\n"
        "Why: according to model.safetensors.index.json, this weight file should contain v\n"
        "Next: download the weight file and model.safetensors.index.json again, both from the "
        "same revision"
    )


def test_numbered_shards_must_be_complete(tmp_path):
    files = hf_files() | {"model-00002-of-00003.safetensors": safetensors()}
    del files["model.safetensors"]
    with pytest.raises(SourceError, match="Weight files are missing from local:x") as caught:
        inspect(write_files(tmp_path, files))
    assert caught.value.why == (
        "according to the numbers in the file names, the checkpoint should contain "
        "model-00001-of-00003.safetensors, model-00003-of-00003.safetensors"
    )


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer.model", "vocab.json", "qwen.tiktoken", "tekken.json"]
)
def test_accepts_any_kind_of_tokenizer(tmp_path, name):
    files = hf_files() | {name: b"{}"}
    if name != "tokenizer.json":
        del files["tokenizer.json"]
    assert inspect(write_files(tmp_path, files)).format == "hf"


def test_rejects_missing_tokenizer(tmp_path):
    files = hf_files()
    del files["tokenizer.json"]
    with pytest.raises(SourceError) as caught:
        inspect(write_files(tmp_path, files))
    assert str(caught.value) == (
        "local:x has no tokenizer.\n"
        "Why: the checkpoint contains neither tokenizer.json nor another supported tokenizer "
        "file\n"
        "Next: add the tokenizer files of the base model to a local copy of the checkpoint, then "
        "pass the copy with `-s local:DIR`"
    )


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["LlamaForSequenceClassification"]},
        {"architectures": ["BertForMaskedLM"]},
        {"architectures": ["BertModel"], "model_type": "bert"},
        {"architectures": ["Wav2Vec2ForCTC"]},
    ],
    ids=["classifier", "mask", "encoder", "speech"],
)
def test_rejects_models_that_do_not_generate_text(tmp_path, config):
    write_files(tmp_path, hf_files(**config))
    with pytest.raises(SourceError, match="is not a text-generation model"):
        inspect(tmp_path)


@pytest.mark.parametrize(
    "architecture",
    ["GPT2LMHeadModel", "ChatGLMModel", "T5ForConditionalGeneration", "MistralForCausalLM"],
)
def test_accepts_models_that_generate_text(tmp_path, architecture):
    write_files(tmp_path, hf_files(architectures=[architecture]))
    assert inspect(tmp_path).architecture == architecture


def test_model_type_replaces_missing_architectures(tmp_path):
    write_files(tmp_path, hf_files(architectures=None, model_type="llama"))
    assert inspect(tmp_path).architecture == "llama"


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (b"{", "Expecting property name"),
        (b"[]", "the file does not contain a JSON object"),
        (b"{}", "the file specifies neither architectures nor model_type"),
        (b'{"architectures": [3]}', "the file specifies neither architectures nor model_type"),
        (b'{"architectures": ["A"], "model_type": ["llama"]}', "model_type is not a string"),
        (b"[" * 100_000, "recursion"),
        (b"\xff", "invalid start byte"),
    ],
    ids=["broken", "list", "empty", "number", "types", "deep", "bytes"],
)
def test_rejects_invalid_config(tmp_path, config, why):
    write_files(tmp_path, hf_files() | {"config.json": config})
    with pytest.raises(SourceError, match=r"config.json cannot be used") as caught:
        inspect(tmp_path)
    assert why in caught.value.why


def test_rejects_folder_without_config(tmp_path):
    with pytest.raises(SourceError) as caught:
        inspect(tmp_path)
    assert str(caught.value) == (
        "local:x is not a Hugging Face checkpoint.\n"
        "Why: config.json is missing\n"
        "Next: pass `-s hf:ORG/NAME` or `-s local:DIR` with a model that Transformers can load"
    )


def test_accepts_folder_without_weights_if_not_needed(tmp_path):
    files = hf_files()
    del files["model.safetensors"]
    options = FetchOptions(needs_weights=False)
    found = inspect_hf_directory(write_files(tmp_path, files), source="local:x", options=options)
    assert found.size_bytes == 0


def test_rejects_folder_without_weights(tmp_path):
    write_files(tmp_path, {"config.json": hf_files()["config.json"], "training_args.bin": b""})
    with pytest.raises(SourceError, match="local:x has no weights"):
        inspect(tmp_path)


def test_names_missing_shards(tmp_path):
    files = {"config.json": hf_files()["config.json"], "a.safetensors": safetensors()}
    shards = ("a.safetensors", "b.safetensors", "c.safetensors")
    write_files(tmp_path, files | {"model.safetensors.index.json": index(*shards)})
    with pytest.raises(SourceError) as caught:
        inspect(tmp_path)
    assert caught.value.what == "Weight files are missing from local:x (2 of 3)."
    assert caught.value.why == (
        "according to model.safetensors.index.json, the checkpoint should contain b.safetensors, "
        "c.safetensors"
    )


@pytest.mark.parametrize("shard", ["../a.safetensors", 7], ids=["path", "number"])
def test_rejects_index_with_paths_outside_the_folder(tmp_path, shard):
    files = {"config.json": hf_files()["config.json"], "model.safetensors.index.json": index(shard)}
    with pytest.raises(SourceError, match="weight_map does not map tensors to file names"):
        inspect(write_files(tmp_path, files))


def test_rejects_truncated_weights(tmp_path):
    write_files(tmp_path, hf_files() | {"model.safetensors": safetensors()[:-3]})
    with pytest.raises(SourceError, match="is not a complete safetensors file"):
        inspect(tmp_path)


def test_pickled_weights_require_permission(tmp_path):
    write_files(tmp_path, hf_files() | {"model.bin": b"pickle"})
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UnsafeCheckpoint) as caught:
        inspect(tmp_path)
    assert str(caught.value) == (
        "The weights of local:x are pickled, and unpickling can run arbitrary code.\n"
        "Why: the checkpoint contains model.bin, but no *.safetensors files\n"
        "Next: use a revision or a copy with safetensors files, or add --allow-pickle if you "
        "trust the publisher"
    )
    assert inspect(tmp_path, allow_pickle=True).size_bytes == len(b"pickle")


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_code_requires_permission(tmp_path, name):
    config = {"model_type": "tiny", "auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}}
    write_files(tmp_path, hf_files() | {name: json.dumps(config).encode()})
    with pytest.raises(UnsafeCheckpoint) as caught:
        inspect(tmp_path)
    assert str(caught.value) == (
        "Loading this checkpoint would run Python code from the checkpoint.\n"
        f"Why: auto_map in {name} refers to code.Tokenizer\n"
        "Next: review the code, then add --trust-remote-code if you trust it"
    )
    assert inspect(tmp_path, trust_remote_code=True).format == "hf"


def test_inspects_gguf(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(llama_gguf())
    assert inspect_gguf(path, source="gguf:x") == Checkpoint(
        path, "gguf", "gguf:x", None, "llama", len(llama_gguf())
    )


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (gguf({"general.architecture": ("string", "a")}, num_floats=0), "does not contain a model"),
        (gguf({}), "does not contain a model"),
        (gguf({"split.count": ("u32", 3)}), "is one of 3 parts of a split model"),
    ],
    ids=["vocabulary", "nameless", "split"],
)
def test_rejects_gguf_without_a_whole_model(tmp_path, data, what):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(data)
    with pytest.raises(SourceError, match=what):
        inspect_gguf(path, source="gguf:x")
