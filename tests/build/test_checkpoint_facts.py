"""Facts of a checkpoint's tokenizer and context length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.samples.checkpoints import gguf
from tests.samples.tensorrt_engines import CHAT_TEMPLATE, write_tokenizer
from trtllm_serve_cli.build.checkpoint_facts import (
    TokenizerFacts,
    read_context_length,
    read_named_templates,
    read_tokenizer_facts,
)
from trtllm_serve_cli.errors import BadInput


def test_tokenizer_facts(tmp_path: Path) -> None:
    facts = read_tokenizer_facts(write_tokenizer(tmp_path))
    assert facts == TokenizerFacts(CHAT_TEMPLATE, "<s>", "</s>", adds_bos=True)


@pytest.mark.parametrize(
    ("post_processor", "adds_bos"),
    [
        (None, False),
        ({"single": [{"Sequence": {"id": "A"}}]}, False),
        ({"single": [{"SpecialToken": {"id": "<s>"}}]}, True),
        ({"single": [{"SpecialToken": {"id": "[CLS]"}}]}, False),
        ({"processors": [{}, {"single": [{"SpecialToken": {"id": "<s>"}}]}]}, True),
    ],
)  # fmt: skip
def test_post_processor_is_used_if_the_config_lacks_add_bos_token(
    tmp_path: Path, post_processor: Any, adds_bos: bool
) -> None:
    write_tokenizer(tmp_path, add_bos_token=None)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"post_processor": post_processor}))
    assert read_tokenizer_facts(tmp_path).adds_bos is adds_bos


def test_template_file_takes_precedence(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("own")
    assert read_tokenizer_facts(tmp_path).chat_template == "own"


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (None, ("", "")),
        (("rag", "default"), ("of default", "")),
        (("default", "tool_use"), ("of default", "of tool_use")),
    ],
)
def test_templates_are_chosen_by_name(tmp_path: Path, names: Any, chosen: Any) -> None:
    templates = names and [{"name": each, "template": f"of {each}"} for each in names]
    write_tokenizer(tmp_path, chat_template=templates)
    facts = read_tokenizer_facts(tmp_path)
    assert (facts.chat_template, facts.tool_chat_template) == chosen


def test_templates_of_a_gguf_file(tmp_path: Path) -> None:
    key = "tokenizer.chat_template"
    metadata = {key: ("string", "d"), f"{key}.tool_use": ("string", "t")}
    (tmp_path / "model.gguf").write_bytes(gguf(metadata))
    templates = read_named_templates(tmp_path / "model.gguf")
    assert templates == {"default": "d", "tool_use": "t"}


def test_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not contain a tokenizer") as raised:
        read_tokenizer_facts(tmp_path)
    assert "--param tokenizer_dir=DIR" in raised.value.next_step


def test_broken_tokenizer_config_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(BadInput, match="cannot be read"):
        read_tokenizer_facts(tmp_path)


@pytest.mark.parametrize(
    ("config", "length"),
    [({"n_positions": 1024}, 1024), ({"text_config": {"max_position_embeddings": 7}}, 7)],
)
def test_context_length_is_found_under_each_key(tmp_path: Path, config: Any, length: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_context_length(tmp_path) == length


def test_missing_context_length_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="does not specify a context length"):
        read_context_length(tmp_path)
