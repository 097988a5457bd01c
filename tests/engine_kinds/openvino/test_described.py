"""The facts of a built OpenVINO engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.samples.checkpoints import gguf
from tests.samples.tensorrt_engines import write_tokenizer
from trtllm_serve_cli.engine_kinds.openvino.described import choose_templates


@pytest.mark.parametrize(
    ("templates", "chosen"),
    [
        ("d", ("stored", "")),
        ([{"name": "default", "template": "d"}], ("stored", "")),
        ([{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}], ("d", "t")),
        (None, ("stored", "")),
    ],
    ids=["one", "one named", "several", "none"],
)
def test_named_templates_are_those_of_the_checkpoint(
    tmp_path: Path, templates: Any, chosen: tuple[str, str]
) -> None:
    folder = write_tokenizer(tmp_path, chat_template=templates)
    assert tuple(choose_templates(folder, "stored").values()) == chosen


def test_named_templates_are_those_of_the_gguf_file(tmp_path: Path) -> None:
    key = "tokenizer.chat_template"
    texts: dict[str, tuple[str, object]] = {
        key: ("string", "d"),
        f"{key}.tool_use": ("string", "t"),
    }
    (tmp_path / "model.gguf").write_bytes(gguf(texts))
    chosen = choose_templates(tmp_path / "model.gguf", "stored")
    assert chosen == {"chat_template": "d", "tool_chat_template": "t"}
