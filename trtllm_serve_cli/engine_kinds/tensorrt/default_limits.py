"""Choose a TensorRT engine's default limits for this machine's GPU."""

from __future__ import annotations

import dataclasses

from packaging.version import Version

from trtllm_serve_cli.build.build_plan import BuildRequest, Toolchain
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.build.tensorrt.engine_step import TRTLLM_BUILD
from trtllm_serve_cli.build.tensorrt.families import uses_build_py
from trtllm_serve_cli.build.tensorrt.flags import flags_of
from trtllm_serve_cli.engine_kinds.card_limits import find_card_limits
from trtllm_serve_cli.sizing.shape import ModelShape

# trtllm-build flags that determine the limits or their memory requirements.
_FLAGS = {"build_config", "gather_all_token_logits"}


def with_default_limits(
    request: BuildRequest, tools: Toolchain, shape: ModelShape, version: Version
) -> EngineOptions:
    """Return the options with default limits for this machine's GPU.

    The default `max_batch_size` is the same as for engine kinds that serve checkpoints directly.
    The default `max_num_tokens` is at least 8192 and `max_input_len`, because the server rejects
    longer prompts unless chunked context is enabled. It is also at least `opt_num_tokens`. However,
    if a full batch contains fewer tokens, the default is the number of tokens in a full batch.
    Limits that the user sets in `request` take precedence.

    If the limits are unknown or not suitable for the engine, return the unchanged options of
    `request`. In this case, `trtllm-build`'s defaults apply.
    """
    options = request.options
    is_legacy = uses_build_py(shape.architecture, version)
    limits = None if is_legacy or _has_own_limits(options) else find_card_limits(request, tools)
    if limits is None:
        return options
    needed = max(options.max_input_len or 0, options.opt_num_tokens or 0)
    batch_size, num_tokens = limits.max_num_seqs, max(limits.max_unsplit_tokens, needed)
    if options.max_batch_size is not None:
        batch_size = options.max_batch_size
    if longest := _find_longest_sequence(options, shape, version):
        num_tokens = min(num_tokens, batch_size * longest)
    if options.max_num_tokens is not None:
        num_tokens = options.max_num_tokens
    return dataclasses.replace(options, max_batch_size=batch_size, max_num_tokens=num_tokens)


def _has_own_limits(options: EngineOptions) -> bool:
    """Return whether the options affect limits or memory in ways that the estimate ignores.

    Draft tokens count towards `max_num_tokens`. Without a paged KV cache, the engine reserves
    memory for `max_batch_size` sequences of the maximum length. Context logits require memory for
    the logits of `max_num_tokens` tokens. Padded batches have no limit on the number of tokens.
    """
    return (
        options.speculative_decoding_mode is not None
        or options.paged_kv_cache is False
        or options.gather_context_logits
        or options.remove_input_padding is False
        or any(name.replace("-", "_") in _FLAGS for name in options.flags)
    )


def _find_longest_sequence(
    options: EngineOptions, shape: ModelShape, version: Version
) -> int | None:
    """Return the maximum number of tokens that a sequence adds to a step, or None if unknown.

    Before TensorRT-LLM 0.11, this number is the maximum prompt length.
    """
    flags = flags_of(TRTLLM_BUILD, version)
    if "--max_input_len" in flags and "--max_seq_len" not in flags:
        return options.max_input_len or int(flags["--max_input_len"].default or 0) or None
    return options.max_seq_len or shape.max_position_embeddings
