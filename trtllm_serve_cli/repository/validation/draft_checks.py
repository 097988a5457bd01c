"""Check that a repository's draft model is compatible with the target model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trtllm_serve_cli.engine_kinds.serving import DRAFT_MODEL
from trtllm_serve_cli.engine_kinds.tensorrt.built_engine import (
    TensorRtBuild,
    read_tensorrt_build,
)
from trtllm_serve_cli.engine_kinds.tensorrt.draft import list_mismatches
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.findings import Checked, Finding

_TARGET = "tensorrt_llm"
_ENGINE = "parameters.gpt_model_path"
_REUSE = "parameters.enable_kv_cache_reuse"
_DECOUPLED = "model_transaction_policy.decoupled"


def check_draft_model(checked: Checked) -> Iterator[Finding]:
    """Yield findings about the `tensorrt_llm_draft` model in a repository that tllm rendered."""
    repository = checked.repository
    if not repository.has_manifest or not {_TARGET, DRAFT_MODEL} <= repository.texts.keys():
        return
    mode = repository.value(_TARGET, _DECOUPLED) or "false"
    if (repository.value(DRAFT_MODEL, _DECOUPLED) or "false") != mode:
        yield checked.finding(
            "error", DRAFT_MODEL, f"decoupled_mode differs from the value in {_TARGET}",
            f"run `{checked.set_command} decoupled_mode={mode}`", place=_DECOUPLED,
        )  # fmt: skip
    builds = [_read_build(checked, model) for model in (_TARGET, DRAFT_MODEL)]
    if builds[0] is None or builds[1] is None:
        return
    target, draft = builds[0], builds[1]
    reuses = repository.value(_TARGET, _REUSE) == "true"
    for why, next_step in list_mismatches(target, draft, reuses_kv_cache=reuses):
        yield checked.finding(
            "error", DRAFT_MODEL,
            f"the draft model cannot generate draft tokens: {why}", next_step, place=_ENGINE,
        )  # fmt: skip
    if draft.max_seq_len < target.max_seq_len:
        yield checked.finding(
            "warning", DRAFT_MODEL,
            f"the draft engine was built for {draft.max_seq_len} tokens, but the target engine "
            f"was built for {target.max_seq_len}, so longer requests with num_draft_tokens fail",
            "build the draft engine again with the same --max-seq-len", place=_ENGINE,
        )  # fmt: skip
    if draft.vocab_size != target.vocab_size:
        yield checked.finding(
            "warning", DRAFT_MODEL,
            f"the draft engine's vocabulary has {draft.vocab_size} tokens, not "
            f"{target.vocab_size}, so requests with use_draft_logits fail",
            "omit use_draft_logits from requests", place=_ENGINE,
        )  # fmt: skip


def _read_build(checked: Checked, model: str) -> TensorRtBuild | None:
    """Return the build settings of the model's engine, or None if they cannot be read."""
    folder = checked.repository.value(model, _ENGINE)
    try:
        return read_tensorrt_build(Path(folder)) if folder else None
    except BadInput:
        return None
