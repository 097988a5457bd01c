"""Rendering and parsing `model.yaml`."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.runtime.triton.model_yaml import (
    as_parameters,
    parse_model_yaml,
    render_model_yaml,
)

NAMES = st.from_regex(r"[a-z_]{1,12}", fullmatch=True).filter(lambda name: name != "triton_config")


@given(
    st.dictionaries(NAMES, st.text() | st.integers(0, 10**9).map(str)),
    st.dictionaries(NAMES, st.booleans() | st.integers(0, 9)),
)
def test_rendered_file_is_parsed_back(parameters, triton_config) -> None:
    text = render_model_yaml(parameters, triton_config)
    read = parse_model_yaml(text)
    assert as_parameters(read) == parameters
    assert {
        name.removeprefix("triton_config."): value
        for name, value in read.items()
        if name.startswith("triton_config.")
    } == triton_config


# JSON encodes other characters as surrogate pairs, which YAML does not combine.
@given(st.dictionaries(NAMES, st.text(st.characters(codec="utf-8", max_codepoint=0xFFFF))))
def test_rendered_file_is_yaml(parameters) -> None:
    read = yaml.safe_load(render_model_yaml(parameters, {"decoupled": True}))
    assert read.pop("triton_config") == {"decoupled": True}
    assert read.pop("kv_cache_config", {}) == {}
    assert {name: str(value).lower() for name, value in read.items()} == {
        as_yaml: str(value).lower() for as_yaml, value in _arguments(parameters).items()
    }


def _arguments(parameters: dict[str, str]) -> dict[str, str]:
    text = render_model_yaml(parameters, {})
    return {name: str(value) for name, value in parse_model_yaml(text).items()}


def test_arguments_have_upstreams_names() -> None:
    parameters = {
        "gpt_model_path": "/e",
        "engine_kind": "openvino",
        "max_num_seqs": "8",
        "enable_kv_cache_reuse": "true",
    }
    assert yaml.safe_load(render_model_yaml(parameters, {"decoupled": False})) == {
        "model": "/e",
        "backend": "openvino",
        "max_batch_size": 8,
        "kv_cache_config": {"enable_block_reuse": True},
        "triton_config": {"decoupled": False},
    }


def test_parses_a_file_written_by_hand() -> None:
    text = """---
# the engine
model: TinyLlama/TinyLlama-1.1B   # from the hub
tokenizer: '/my tok'
flag: True
nothing: ~
list: [1, 2] # two

triton_config:
  # nested
  max_batch_size: 0
  decoupled: false
"""
    assert parse_model_yaml(text) == {
        "model": "TinyLlama/TinyLlama-1.1B",
        "tokenizer": "/my tok",
        "flag": True,
        "nothing": None,
        "list": [1, 2],
        "triton_config.max_batch_size": 0,
        "triton_config.decoupled": False,
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: 1\nx", "line 2 is neither a top-level nor a nested `key: value` line: 'x'"),
        ("  a: 1", "line 1 is neither a top-level nor a nested `key: value` line: 'a: 1'"),
        ("a:\n  b:", "line 2 has no value, but a nested key requires one: 'b:'"),
        ("a:\n  - 1", "line 2 is neither a top-level nor a nested `key: value` line: '- 1'"),
    ],
)
def test_error_names_the_invalid_line(text: str, why: str) -> None:
    with pytest.raises(ValueError, match="line") as raised:
        parse_model_yaml(text)
    assert str(raised.value) == why
