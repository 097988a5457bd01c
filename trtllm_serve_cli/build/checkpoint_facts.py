"""Read a checkpoint's context length, weight format, embedding settings and tokenizer settings.

The functions parse the checkpoint files directly and do not require transformers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.runtime.embedding_settings import EmbeddingSettings
from trtllm_serve_cli.sizing.families import FAMILIES
from trtllm_serve_cli.sizing.precision import name_weight_format, read_quantization_word
from trtllm_serve_cli.sizing.shape import find_text_config
from trtllm_serve_cli.sources.checkpoint import (
    QUANTIZATION_FILE,
    Checkpoint,
    has_tokenizer,
    read_config,
)
from trtllm_serve_cli.sources.formats.chat_templates import DEFAULT, TOOL_USE, read_templates
from trtllm_serve_cli.sources.formats.gguf import read_gguf
from trtllm_serve_cli.sources.formats.json_file import CONTEXT_KEYS, read_object
from trtllm_serve_cli.sources.formats.sentence_transformers import (
    is_embedding_model,
    read_embedding,
    read_max_length,
)

# GGUF key of the default chat template. The keys of other templates end with their names. Source:
# gguf-py/gguf/constants.py in llama.cpp.
_GGUF_TEMPLATE = "tokenizer.chat_template"


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """Tokenizer properties that clients need. `Engine` has fields with the same names."""

    chat_template: str
    bos_token: str
    eos_token: str
    adds_bos: bool
    tool_chat_template: str = ""


def read_context_length(checkpoint: Path) -> int:
    """Return the context length of a GGUF file or checkpoint folder, in tokens.

    For an embedding model, return the maximum input length. Raise `ValueError` if the checkpoint
    does not specify a context length or config.json is not valid JSON. Raise `OSError` or
    `SourceError` if a file cannot be read.
    """
    if checkpoint.is_file():
        length = read_gguf(checkpoint).context_length
    elif is_embedding_model(checkpoint):
        length = read_max_length(checkpoint)
    else:
        config = read_text_config(checkpoint)
        length = next((config[key] for key in CONTEXT_KEYS if config.get(key)), None)
    if not length:
        raise ValueError(f"{checkpoint} does not specify a context length")
    return int(length)


def read_embedding_if_any(checkpoint: Path) -> EmbeddingSettings | None:
    """Return the embedding settings of an embedding model, or `None` for other models.

    Raise `SourceError` if the settings are not valid or not supported.
    """
    is_folder = checkpoint.is_dir() and is_embedding_model(checkpoint)
    return read_embedding(checkpoint) if is_folder else None


def read_text_config(directory: Path) -> dict[str, Any]:
    """Return the section of `config.json` that describes the language model.

    The result includes the defaults of the model's class, which published files may omit.
    """
    config = find_text_config(json.loads((directory / "config.json").read_text("utf-8")))
    family = FAMILIES.get(str(config.get("model_type")))
    return {**(family.defaults if family else {}), **config}


def read_weight_format(checkpoint: Checkpoint) -> str | None:
    """Return the checkpoint's weight format, or `None` if the weights are not quantized.

    The result is the format's key in `WEIGHT_FORMATS` if possible. Otherwise, it is the result of
    `read_quantization`. Raise `SourceError` if a file is not valid.
    """
    word = read_quantization(checkpoint)
    return word and (name_weight_format(word) or word)


def read_quantization(checkpoint: Checkpoint) -> str | None:
    """Return the name of the checkpoint's quantization, or `None` if it is not quantized.

    The name comes from hf_quant_config.json (NVIDIA checkpoints) or config.json, in lower case. It
    is "unknown" if the file does not contain the name. Raise `SourceError` if a file is not valid.
    """
    path = checkpoint.path / QUANTIZATION_FILE
    nvidia_config = read_object(path) if path.exists() else {}
    quantization = nvidia_config.get("quantization") or _read_quantization_config(checkpoint)
    if not isinstance(quantization, dict):
        return None
    return read_quantization_word(quantization)


def read_quantization_method(checkpoint: Checkpoint) -> str | None:
    """Return `quant_method` in config.json in lower case.

    Return `None` if the checkpoint is not quantized or has hf_quant_config.json, which takes
    precedence. Raise `SourceError` if config.json is not valid.
    """
    if (checkpoint.path / QUANTIZATION_FILE).exists():
        return None
    quantization = _read_quantization_config(checkpoint)
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    return str(method).lower() if method else None


def _read_quantization_config(checkpoint: Checkpoint) -> Any:
    return find_text_config(read_config(checkpoint)).get("quantization_config")


def read_tokenizer_facts(directory: Path) -> TokenizerFacts:
    """Return the properties of a Hugging Face tokenizer.

    Raise `BadInput` if the tokenizer is missing or cannot be read.
    """
    if not has_tokenizer([path.name for path in directory.glob("*")]):
        raise BadInput(
            f"{directory} does not contain a tokenizer.",
            why="the folder contains neither tokenizer.json nor another supported tokenizer file",
            next_step="pass --param tokenizer_dir=DIR, where DIR is the model's checkpoint folder",
        )
    try:
        config = _read_json_if_present(directory / "tokenizer_config.json")
        bos_token = _token(config.get("bos_token"))
        templates = read_templates(directory, config)
        return TokenizerFacts(
            chat_template=templates.get(DEFAULT, ""),
            bos_token=bos_token,
            eos_token=_token(config.get("eos_token")),
            adds_bos=_adds_bos(directory, config, bos_token),
            tool_chat_template=templates.get(TOOL_USE, ""),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f"The tokenizer in {directory} cannot be read.",
            why=f"{type(error).__name__}: {error}",
            next_step="fix the tokenizer files or their permissions, or download the tokenizer "
            "again",
        ) from error


def read_named_templates(checkpoint: Path) -> dict[str, str]:
    """Return the chat templates of a GGUF file or checkpoint folder, by name.

    Raise `OSError`, `SourceError`, `ValueError`, `KeyError` or `TypeError` if the templates cannot
    be read.
    """
    if checkpoint.is_dir():
        config = _read_json_if_present(checkpoint / "tokenizer_config.json")
        return read_templates(checkpoint, config)
    metadata = read_gguf(checkpoint).metadata
    keys = {DEFAULT: _GGUF_TEMPLATE, TOOL_USE: f"{_GGUF_TEMPLATE}.{TOOL_USE}"}
    return {name: str(metadata[key]) for name, key in keys.items() if key in metadata}


def _read_json_if_present(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def _token(value: Any) -> str:
    """Return a token's text.

    `value` is a string, an object with a `content` field, or `None`. Return an empty string for
    `None`.
    """
    return str(value["content"] if isinstance(value, dict) else value or "")


def _adds_bos(directory: Path, config: dict[str, Any], bos_token: str) -> bool:
    """Return whether the tokenizer prepends the BOS token.

    If `add_bos_token` in `config` is not a boolean, return whether the post-processor in
    tokenizer.json prepends the token.
    """
    if isinstance(adds_bos := config.get("add_bos_token"), bool):
        return adds_bos
    processor = _read_json_if_present(directory / "tokenizer.json").get("post_processor") or {}
    steps = processor.get("processors", [processor])
    first = [step["single"][0] for step in steps if step.get("single")]
    return any(each.get("SpecialToken", {}).get("id") == bos_token != "" for each in first)
