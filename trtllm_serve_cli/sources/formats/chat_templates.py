"""Read the chat templates of a Hugging Face tokenizer.

A tokenizer has one template or several named templates. `apply_chat_template` in Transformers uses
the template `tool_use` for conversations with tools, and `default` otherwise. Source:
`_from_pretrained` and `get_chat_template` in transformers/tokenization_utils_base.py, version 5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Subfolder of a checkpoint with the templates other than `default`.
TEMPLATES_FOLDER = "additional_chat_templates"
TEMPLATE_FILE = re.compile(rf"{TEMPLATES_FOLDER}/[^/]+\.jinja")
DEFAULT = "default"
TOOL_USE = "tool_use"


def read_templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates of the tokenizer in `directory`, by name.

    `config` is the content of tokenizer_config.json. Template files take precedence over the
    templates in `config`. A single template has the name `default`. Raise `OSError`, `ValueError`,
    `KeyError` or `TypeError` if the templates cannot be read.
    """
    files = {path.stem: path for path in sorted((directory / TEMPLATES_FOLDER).glob("*.jinja"))}
    if (default := directory / "chat_template.jinja").exists():
        files.setdefault(DEFAULT, default)
    if files:
        return {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    templates = config.get("chat_template") or {}
    if isinstance(templates, str):
        return {DEFAULT: templates}
    if isinstance(templates, list):
        templates = {each["name"]: each["template"] for each in templates}
    return {str(name): str(template) for name, template in templates.items()}
