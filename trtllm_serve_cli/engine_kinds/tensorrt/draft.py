"""Check that a TensorRT engine can generate draft tokens for a target engine.

Triton serves both engines. The text models send the draft engine's tokens to the target engine,
which verifies them. Sources: docs/source/advanced/speculative-decoding.md in NVIDIA/TensorRT-LLM
v0.19.0, and the error "KV cache block reuse must be enabled for speculative decoding target model".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trtllm_serve_cli.build.engine import TOKENIZER_FOLDER, Engine
from trtllm_serve_cli.engine_kinds.tensorrt.built_engine import (
    TensorRtBuild,
    built_of,
    describe_source,
)
from trtllm_serve_cli.errors import BadInput

_REUSE = "enable_kv_cache_reuse"


def describe_draft(engine: Engine, values: Mapping[str, str]) -> Engine | None:
    """Return the draft engine for `engine`, or None if no draft engine is set.

    `values` are the repository's parameters. Raise `BadInput` if the engine in the folder
    `draft_engine_dir` cannot generate draft tokens for `engine`.
    """
    folder = values.get("draft_engine_dir", "")
    if not folder:
        return None
    path, tokenizer = Path(folder), Path(values["tokenizer_dir"])
    draft = describe_source(engine.model_name, path, tokenizer, f"engine:{folder}")
    mismatches = list_mismatches(
        built_of(engine), built_of(draft), reuses_kv_cache=values[_REUSE] == "true"
    )
    mismatch = next(mismatches, None) or _compare_tokenizers(path, tokenizer, draft, engine)
    if mismatch is not None:
        why, next_step = mismatch
        raise BadInput(
            f"The engine in {folder} cannot generate draft tokens for {engine.model_name}.",
            why=why,
            next_step=next_step,
        )
    return draft


def list_mismatches(
    target: TensorRtBuild, draft: TensorRtBuild, *, reuses_kv_cache: bool
) -> Iterator[tuple[str, str]]:
    """Yield a reason and a next step for each problem that prevents drafting for the target."""
    if draft.version != target.version:
        yield (
            f"the draft engine was built with TensorRT-LLM {draft.version}, but the target engine "
            f"was built with {target.version}",
            "build both engines with the same TensorRT-LLM version",
        )
    if not target.accepts_drafts:
        yield (
            "the target engine was built without draft_tokens_external, so it cannot verify "
            "draft tokens",
            "build the target engine again with --build-option "
            "speculative_decoding_mode=draft_tokens_external --build-option max_draft_len=10",
        )
    if not target.has_paged_context_fmha:
        yield (
            "the target engine was built without use_paged_context_fmha, which is required to "
            "verify draft tokens",
            "build the target engine again with --build-option use_paged_context_fmha=true",
        )
    elif not reuses_kv_cache:
        yield (
            f"{_REUSE} is false, but verifying draft tokens requires the KV cache of earlier steps",
            f"set {_REUSE}=true",
        )


def _compare_tokenizers(
    draft_dir: Path, tokenizer: Path, draft: Engine, target: Engine
) -> tuple[str, str] | None:
    """Return a reason and a next step if the engines' vocabularies differ, or None.

    Compare the engines' vocabulary sizes only if a tokenizer's vocabulary cannot be read. The sizes
    may differ even if the tokens are the same, because TensorRT-LLM and some checkpoints pad the
    vocabulary.
    """
    next_step = "choose a draft model with the same tokenizer"
    own, theirs = map(_read_vocabulary, (tokenizer, draft_dir / TOKENIZER_FOLDER))
    if own and theirs:
        return (
            None
            if own == theirs
            else ("the tokenizers of the two models have different vocabularies", next_step)
        )
    if draft.vocab_size != target.vocab_size:
        sizes = (
            f"the draft engine's vocabulary has {draft.vocab_size} tokens, but the target engine's "
            f"vocabulary has {target.vocab_size}"
        )
        return sizes, next_step
    return None


def _read_vocabulary(folder: Path) -> Any:
    """Return the vocabulary from the tokenizer's `tokenizer.json`, or None if it cannot be read."""
    try:
        return json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
