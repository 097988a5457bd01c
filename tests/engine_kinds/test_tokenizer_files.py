"""The tokenizer files that are copied next to an engine."""

from __future__ import annotations

from pathlib import Path

from tests.samples.checkpoints import write_files
from trtllm_serve_cli.engine_kinds.tokenizer_files import copy_tokenizer


def test_copies_the_additional_chat_templates(tmp_path: Path) -> None:
    names = ("tokenizer.json", "chat_template.jinja", "additional_chat_templates/tool_use.jinja")
    others = ("model.safetensors.index.json", "additional_chat_templates/notes.txt")
    checkpoint = write_files(tmp_path / "hf", dict.fromkeys((*names, *others), b"{}"))
    for _ in range(2):
        folder = copy_tokenizer(checkpoint, tmp_path / "engine")
    copied = [path for path in folder.rglob("*") if path.is_file()]
    assert {str(path.relative_to(folder)) for path in copied} == set(names)
