"""Read the options for guided decoding."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import typer

from trtllm_serve_cli.cli.infer.infer_options import InferOptions
from trtllm_serve_cli.errors import BadInput


class Guide(NamedTuple):
    """The input tensors that constrain the response format.

    `kind` is sent as `guided_decoding_guide_type`, and `text` as `guided_decoding_guide`.
    """

    kind: str | None = None
    text: str | None = None


def plan_guide(options: InferOptions) -> Guide:
    """Return the guide that the options specify.

    The options for JSON schemas, grammars and structural tags accept either the text itself or a
    file path. Raise `BadParameter` if several options specify a guide. Raise `BadInput` if a file
    cannot be read, or if a JSON schema or structural tag is not valid JSON.
    """
    names = _list_used(options)
    if len(names) > 1:
        raise typer.BadParameter(
            f"{' and '.join(names)} cannot be used together. Pass only one of these options."
        )
    if options.json_schema is not None:
        return Guide("json_schema", _read_json(options.json_schema, "--json-schema"))
    if options.structural_tag is not None:
        return Guide("structural_tag", _read_json(options.structural_tag, "--structural-tag"))
    if options.grammar is not None:
        text = _read(options.grammar, "--grammar", lambda text: "::=" in text)
        return Guide("ebnf_grammar", text)
    if options.regex is not None:
        return Guide("regex", options.regex)
    return Guide(options.guide)


def find_guide_option(options: InferOptions) -> str | None:
    """Return the option that specifies the guide, or None if no option does."""
    return next(iter(_list_used(options)), None)


def _list_used(options: InferOptions) -> list[str]:
    names = ("guide", "json_schema", "regex", "grammar", "structural_tag")
    used = [name for name in names if getattr(options, name) is not None]
    return [f"--{name.replace('_', '-')}" for name in used]


def _read_json(value: str, option: str) -> str:
    text = _read(value, option, lambda text: text.lstrip().startswith("{"))
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(
            f"The value of {option} is not valid JSON.",
            why=str(error),
            next_step=f"pass a JSON object, or the path of a JSON file, with {option}",
        ) from error
    return text


def _read(value: str, option: str, is_text: Callable[[str], bool]) -> str:
    if is_text(value):
        return value
    try:
        return Path(value).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{value} cannot be read.",
            why=getattr(error, "strerror", None) or str(error),
            next_step=f"pass the path of an existing UTF-8 file, or the text itself, with {option}",
        ) from error
