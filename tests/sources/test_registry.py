from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.samples.checkpoints import hf_files, write_files
from trtllm_serve_cli.catalog.entries import load_catalog
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.paths import find_home
from trtllm_serve_cli.sources.checkpoint import FetchOptions
from trtllm_serve_cli.sources.engine_source import EngineSource
from trtllm_serve_cli.sources.fetch import fetch_checkpoint, inspect_source, plan_fetch
from trtllm_serve_cli.sources.gguf_source import GgufSource
from trtllm_serve_cli.sources.hub.hub_source import HubSource
from trtllm_serve_cli.sources.local_source import LocalSource
from trtllm_serve_cli.sources.pypi import PypiSource
from trtllm_serve_cli.sources.registry import SOURCES, parse_source
from trtllm_serve_cli.sources.source import CheckpointSource

NAMES = st.from_regex(r"[A-Za-z0-9_]{1,12}([.-][A-Za-z0-9_]{1,12}){0,2}", fullmatch=True).filter(
    lambda name: not name.endswith(".git")
)
VERSIONS = st.from_regex(r"[0-9]{1,3}(\.[0-9a-z]{1,4}){0,3}", fullmatch=True)
PATHS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).map(
    lambda text: Path("/models", text)
)
FILES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9 ._#@-]{0,20}(/[A-Za-z0-9]{1,9}){0,2}", fullmatch=True)
SOME_SOURCES = st.one_of(
    st.builds(
        HubSource,
        st.builds("{}/{}".format, NAMES, NAMES),
        st.none() | st.from_regex(r"[a-z0-9]{1,9}(/[a-z0-9]{1,9}){0,2}", fullmatch=True),
    ),
    st.builds(LocalSource, PATHS),
    st.builds(GgufSource, PATHS),
    st.builds(EngineSource, PATHS),
    st.builds(PypiSource, NAMES.map(lambda name: name.replace("_", "x")), VERSIONS, FILES),
)


@given(SOME_SOURCES)
def test_printed_source_parses_to_itself(source):
    assert parse_source(str(source)) == source


def test_every_source_of_the_catalog_parses():
    for entry in load_catalog().values():
        assert str(parse_source(entry.source)) == entry.source


def test_expands_home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert parse_source("local:~/llama") == LocalSource(Path("/home/someone/llama"))


@pytest.mark.parametrize(
    ("text", "next_step"),
    [
        ("meta-llama/Llama-2-7b-hf", "pass `-s hf:meta-llama/Llama-2-7b-hf`"),
        ("model.gguf", "pass `-s gguf:model.gguf`"),
        ("ftp:thing", "pass `-s hf:ORG/NAME`"),
        ("", "pass `-s hf:ORG/NAME`"),
    ],
)
def test_source_without_a_kind_suggests_one(text, next_step):
    with pytest.raises(BadInput, match="is not a valid source") as caught:
        parse_source(text)
    assert caught.value.next_step == next_step


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("hf:gpt2", "'hf:gpt2' is not a valid Hugging Face repository name."),
        ("hf:a/b/c", "'hf:a/b/c' is not a valid Hugging Face repository name."),
        ("hf:a/../b", "'hf:a/../b' is not a valid Hugging Face repository name."),
        ("hf:a/b--c", "'hf:a/b--c' is not a valid Hugging Face repository name."),
        ("hf:a/b.git", "'hf:a/b.git' is not a valid Hugging Face repository name."),
        ("hf:a/b@", "'' is not a valid revision."),
        ("hf:a/b@v 1", "'v 1' is not a valid revision."),
        ("hf:a/b@../../x", "'../../x' is not a valid revision."),
        ("local:", "'local:' does not contain a folder path."),
        ("gguf: ", "'gguf:' does not contain a file path."),
        ("pypi:pkg", "'pypi:pkg' does not specify a file in a wheel."),
        ("pypi:pkg==1.0", "'pypi:pkg==1.0' does not specify a file in a wheel."),
        ("pypi:pkg#f", "'pypi:pkg#f' does not specify a file in a wheel."),
        ("pypi:--x==1#f", "'pypi:--x==1#f' does not specify a file in a wheel."),
        ("pypi:pkg==1.*#f", "'pypi:pkg==1.*#f' does not specify a file in a wheel."),
        ("pypi:pkg==1#../f", "'pypi:pkg==1#../f' does not specify a file in a wheel."),
        ("pypi:pkg==1#/f", "'pypi:pkg==1#/f' does not specify a file in a wheel."),
    ],
)
def test_rejects_malformed_source(text, what):
    with pytest.raises(BadInput) as caught:
        parse_source(text)
    assert caught.value.what == what
    assert caught.value.next_step


def test_a_new_kind_is_one_module_and_one_row(tmp_path, home_folder, monkeypatch):
    row = ("tests.fakes.toy_source", "ToySource", "toy:FOLDER")
    monkeypatch.setitem(SOURCES, "toy", row)
    folder = write_files(tmp_path / "from", hf_files())
    source, home, options = parse_source(f"toy:{folder}"), find_home(), FetchOptions()
    assert isinstance(source, CheckpointSource)
    assert plan_fetch(source, home=home).description == f"toy:{folder}: copy it"
    inspected = inspect_source(source, home=home, options=options)
    fetched = fetch_checkpoint(source, home=home, options=options, notify=lambda text: None)
    assert fetched == dataclasses.replace(inspected, path=home.checkpoints / "toy")
    with pytest.raises(BadInput, match="toy"):
        parse_source("toy")
