"""Read an embedding model's settings from sentence-transformers files.

`modules.json` lists the modules that process text: Transformer, Pooling, and often Normalize. The
file formats are defined in sentence_transformers/SentenceTransformer.py and
sentence_transformers/models in UKPLab/sentence-transformers 5. For Matryoshka embeddings, this
module reads the same `config.json` keys as vLLM (vllm/config/model.py, version 0.26).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeGuard

from trtllm_serve_cli.errors import SourceError
from trtllm_serve_cli.runtime.embedding_settings import POOLING_MODES, EmbeddingSettings
from trtllm_serve_cli.sources.formats.json_file import (
    CONTEXT_KEYS,
    broken_json,
    read_json,
    read_object,
)

MODULES_FILE = "modules.json"
# File with the Transformer module's limits, for example `max_seq_length`.
TRANSFORMER_FILE = "sentence_bert_config.json"
PROMPTS_FILE = "config_sentence_transformers.json"
# Matches the path of a module configuration, for example 1_Pooling/config.json.
MODULE_CONFIG = re.compile(r"[0-9]+_[A-Za-z0-9]+/config\.json")
_SUPPORTED = ("Transformer", "Pooling", "Normalize")
# Maps flags in the Pooling module's configuration to pooling modes.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# Model families whose first input token has the position `pad_token_id` + 1, so fewer positions are
# available.
_OFFSET_POSITIONS = ("camembert", "mpnet", "roberta", "xlm-roberta")


def is_embedding_model(folder: Path) -> bool:
    """Return whether the checkpoint in `folder` contains modules.json."""
    return (folder / MODULES_FILE).is_file()


def read_embedding(folder: Path) -> EmbeddingSettings:
    """Return the embedding settings of the model in `folder`.

    Raise `SourceError` if a module, the pooling mode or `do_lower_case` is not supported, or if a
    file is not valid.
    """
    modules = _read_modules(folder)
    path = folder / modules["Pooling"] / "config.json"
    pooling = read_object(path)
    config = read_object(folder / "config.json")
    dimension = pooling.get("word_embedding_dimension") or pooling.get("embedding_dimension")
    dimension = dimension or config.get("hidden_size")
    if not _is_count(dimension):
        raise broken_json(path, "word_embedding_dimension is missing or is not a positive integer")
    sizes = config.get("matryoshka_dimensions") or []
    if not isinstance(sizes, list) or not all(map(_is_count, sizes)):
        raise broken_json(
            folder / "config.json", "matryoshka_dimensions is not a list of positive integers"
        )
    has_prompt = pooling.get("include_prompt", True)
    return EmbeddingSettings(
        dimension=dimension,
        pooling=_find_mode(pooling, path),
        is_normalized="Normalize" in modules,
        is_matryoshka=bool(sizes or config.get("is_matryoshka")),
        matryoshka_dimensions=tuple(sorted(sizes)),
        # Omit the prompts if `include_prompt` is false, because tllm's pooling cannot exclude
        # prompt tokens.
        prompts=_read_prompts(folder) if has_prompt else {},
    )


def read_max_length(folder: Path) -> int:
    """Return the maximum input length in tokens, including special tokens.

    The length is the minimum of the model's number of positions and `max_seq_length` in the
    Transformer module's configuration. Raise `ValueError` if neither is set, or `SourceError` if a
    file is not valid.
    """
    config = read_object(folder / "config.json")
    positions = next((config[key] for key in CONTEXT_KEYS if _is_count(config.get(key))), 0)
    if config.get("model_type") in _OFFSET_POSITIONS:
        padding = config.get("pad_token_id")
        positions -= (padding if isinstance(padding, int) else 1) + 1
    path = folder / TRANSFORMER_FILE
    configured = read_object(path).get("max_seq_length") if path.exists() else None
    lengths = [length for length in (positions, configured) if _is_count(length)]
    if not lengths:
        raise ValueError(f"{folder} does not specify the maximum input length")
    return min(lengths)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _read_modules(folder: Path) -> dict[str, str]:
    """Return the module folders, keyed by module class name.

    Raise `SourceError` if modules.json is not valid, if a module is not supported, if the Pooling
    module is missing, or if the Transformer sets `do_lower_case`.
    """
    path = folder / MODULES_FILE
    entries = read_json(path)
    try:
        modules = {str(each["type"]).rpartition(".")[2]: str(each["path"]) for each in entries}
    except (TypeError, KeyError) as error:
        raise broken_json(path, "some entries lack `type` or `path`") from error
    if unknown := [name for name in modules if name not in _SUPPORTED]:
        raise _unsupported(folder, f"{path} lists the {unknown[0]} module")
    if "Pooling" not in modules:
        raise _unsupported(folder, f"{path} does not list a Pooling module")
    transformer = folder / TRANSFORMER_FILE
    if transformer.exists() and read_object(transformer).get("do_lower_case"):
        raise _unsupported(folder, f"{transformer} sets do_lower_case")
    pooling = modules["Pooling"]
    if ".." in pooling or pooling.startswith("/") or "\0" in pooling:
        raise broken_json(path, "the Pooling module path is outside the checkpoint")
    return modules


def _find_mode(pooling: dict[str, Any], path: Path) -> str:
    """Return the pooling mode, which newer files specify by name and older files with a flag."""
    named = pooling.get("pooling_mode")
    modes = named if isinstance(named, list) else [named]
    if not named:
        modes = [mode for flag, mode in _FLAGS.items() if pooling.get(flag)]
    if len(modes) != 1 or modes[0] not in POOLING_MODES:
        names = " and ".join(map(str, modes)) or "none"
        raise _unsupported(path.parent.parent, f"{path} sets the pooling mode to {names}")
    return str(modes[0])


def _read_prompts(folder: Path) -> dict[str, str]:
    path = folder / PROMPTS_FILE
    prompts = read_object(path).get("prompts") if path.exists() else None
    if not isinstance(prompts, dict):
        return {}
    return {name: text for name, text in prompts.items() if text and isinstance(text, str)}


def _unsupported(folder: Path, why: str) -> SourceError:
    return SourceError(
        f"The embedding model in {folder} is not supported.",
        why=f"{why}; tllm supports only the modules {', '.join(_SUPPORTED)} with a single pooling "
        f"mode ({', '.join(POOLING_MODES)}) and without do_lower_case",
        next_step="pass another embedding model, for example `-s "
        "hf:sentence-transformers/all-MiniLM-L6-v2`",
    )
