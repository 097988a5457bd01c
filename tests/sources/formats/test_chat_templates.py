"""Chat templates of a tokenizer, compared with `apply_chat_template` in Transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.build.checkpoint_facts import read_tokenizer_facts
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.gateway.prompts.chat_template import ChatTemplate
from trtllm_serve_cli.sources.formats.chat_templates import read_templates

# Each template renders its name, so that the prompt shows which template was used. The markers are
# those of the format Hermes.
SOURCE = "NAME{{ bos_token }}{% for t in tools or [] %}{{ t | tojson }}<tool_call>{% endfor %}"
SOURCE += "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
NAMES = ("default", "tool_use", "rag")
TOOL = {"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}}


def write_vocabulary(folder: Path, config: dict[str, Any]) -> None:
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": {"<s>": 0, "</s>": 1}, "unk_token": "<s>"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    tokens = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**tokens, **config}))


def write_files(folder: Path, names: frozenset[str], prefix: str) -> None:
    for name in names:
        path = folder / "additional_chat_templates" / f"{name}.jinja"
        if name == "default":
            path = folder / "chat_template.jinja"
        path.parent.mkdir(exist_ok=True)
        path.write_text(SOURCE.replace("NAME", prefix + name))


some_names = st.frozensets(st.sampled_from(NAMES))


@given(
    in_config=st.one_of(st.none(), st.just("single"), some_names),
    in_files=some_names,
    has_tools=st.booleans(),
    content=st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=9),
)
def test_prompt_is_that_of_transformers(
    tmp_path_factory: pytest.TempPathFactory,
    in_config: str | frozenset[str] | None, in_files: frozenset[str], has_tools: bool, content: str,
) -> None:  # fmt: skip
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tokenizer")
    config: dict[str, Any] = {}
    if isinstance(in_config, str):
        config["chat_template"] = SOURCE.replace("NAME", in_config)
    elif in_config is not None:
        config["chat_template"] = [
            {"name": name, "template": SOURCE.replace("NAME", name)} for name in in_config
        ]
    write_vocabulary(folder, config)
    write_files(folder, in_files, "file ")
    facts = read_tokenizer_facts(folder)
    info = ModelInfo(
        "demo", facts.chat_template or None, facts.bos_token, facts.eos_token,
        tool_chat_template=facts.tool_chat_template or None,
    )  # fmt: skip
    template = ChatTemplate.of(info)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    chat = {"conversation": [{"role": "user", "content": content}], "tokenize": False}
    tools = [TOOL] if has_tools else None
    if template is None:
        with pytest.raises(ValueError, match="chat template"):
            tokenizer.apply_chat_template(**chat)
    else:
        expected = tokenizer.apply_chat_template(**chat, tools=tools)
        assert template.render(chat["conversation"], tools=tools) == expected


def test_reads_what_transformers_saves(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    templates = {name: SOURCE.replace("NAME", name) for name in NAMES}
    write_vocabulary(tmp_path, {})
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    tokenizer.chat_template = templates
    for saves_files in (True, False):
        folder = tmp_path / str(saves_files)
        tokenizer.save_pretrained(folder, save_jinja_files=saves_files)
        config = json.loads((folder / "tokenizer_config.json").read_text())
        assert read_templates(folder, config) == templates
