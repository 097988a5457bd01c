"""Read and write `model.yaml`, which contains the arguments for TensorRT-LLM's `LLM`.

The file is part of the llmapi layout. This module does not use a YAML package, because the serving
machine may not have one installed. The module supports only `key: value` lines, one level of nested
keys, and comments. Values are JSON or plain text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .parameters import parse_scalar

# Maps `LLM` arguments to `tensorrt_llm` parameters in `config.pbtxt` if the names differ.
_PARAMETERS = {
    "model": "gpt_model_path",
    "tokenizer": "tokenizer_dir",
    "backend": "engine_kind",
    "max_batch_size": "max_num_seqs",
    "kv_cache_config.max_tokens": "max_tokens_in_paged_kv_cache",
    "kv_cache_config.enable_block_reuse": "enable_kv_cache_reuse",
}
_ARGUMENTS = {parameter: argument for argument, parameter in _PARAMETERS.items()}
_LINE = re.compile(r"( *)([A-Za-z_][A-Za-z0-9_]*):(?:[ \t]+(.*))?")
_WORDS = {"True": True, "False": False, "None": None, "~": None}


def parse_model_yaml(text: str) -> dict[str, Any]:
    """Return the values in `text` by key. The key of a nested value is `parent.key`.

    Raise `ValueError` with the line number if a line is invalid.
    """
    values: dict[str, Any] = {}
    parent = ""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#") or stripped == "---":
            continue
        match = _LINE.fullmatch(line.rstrip())
        if match is None or (match[1] and not parent):
            raise ValueError(
                f"line {number} is neither a top-level nor a nested `key: value` line: "
                f"{stripped[:60]!r}"
            )
        indent, key, value = match.groups()
        if not indent:
            parent = ""
        if value is None or value.startswith("#"):
            if indent:
                raise ValueError(
                    f"line {number} has no value, but a nested key requires one: {stripped[:60]!r}"
                )
            parent = f"{key}."
            continue
        values[(parent if indent else "") + key] = _parse_value(value)
    return values


def _parse_value(text: str) -> Any:
    text = text.strip()
    try:
        value, end = json.JSONDecoder().raw_decode(text)
        if not text[end:].strip() or text[end:].lstrip().startswith("#"):
            return value
    except ValueError:
        pass
    word = re.split(r"[ \t]#", text)[0].strip().strip("'")
    return _WORDS.get(word, word)


def as_parameters(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Convert `arguments` to parameters for `config.pbtxt`.

    Omit arguments in `triton_config`, and arguments whose value is null.
    """
    return {
        _PARAMETERS.get(name, name): _render_scalar(value)
        for name, value in arguments.items()
        if value is not None and not name.startswith("triton_config.")
    }


def render_model_yaml(parameters: Mapping[str, str], triton_config: Mapping[str, Any]) -> str:
    """Convert `parameters` back to arguments and return the text of a `model.yaml`."""
    values = {_ARGUMENTS.get(name, name): parse_scalar(value) for name, value in parameters.items()}
    return render_arguments(nest(values), triton_config)


def render_arguments(arguments: Mapping[str, Any], triton_config: Mapping[str, Any]) -> str:
    """Return the text of a `model.yaml` with `arguments` and the section `triton_config`.

    Mappings become nested keys.
    """
    groups = {name: value for name, value in arguments.items() if isinstance(value, Mapping)}
    lines = [
        f"{name}: {json.dumps(value)}" for name, value in arguments.items() if name not in groups
    ]
    for name, group in {**groups, "triton_config": triton_config}.items():
        lines += [f"{name}:", *(f"  {key}: {json.dumps(each)}" for key, each in group.items())]
    return "\n".join(lines) + "\n"


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert flat keys to nested mappings.

    The value of a key `parent.key` is stored under `key` in the mapping `parent`.
    """
    nested: dict[str, Any] = {}
    for name, value in values.items():
        parent, _, key = name.rpartition(".")
        if parent:
            nested.setdefault(parent, {})[key] = value
        else:
            nested[key] = value
    return nested


def _render_scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
