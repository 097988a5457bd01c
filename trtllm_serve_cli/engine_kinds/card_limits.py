"""Choose default limits for the engines that run on this machine's GPUs."""

from __future__ import annotations

import dataclasses

from trtllm_serve_cli.build.build_plan import BuildRequest, Toolchain
from trtllm_serve_cli.errors import BadInput, SourceError
from trtllm_serve_cli.sizing.facts import read_checkpoint_facts
from trtllm_serve_cli.sizing.plan import plan_size
from trtllm_serve_cli.sizing.serving_limits import ServingLimits
from trtllm_serve_cli.sizing.size_options import SizeOptions

# Options that affect memory and speed. `EngineOptions` and `SizeOptions` use the same names.
SIZE_OPTIONS = ("tp", "pp", "moe_tp", "moe_ep", "dtype", "quantization", "kv_cache_dtype")


def find_card_limits(request: BuildRequest, tools: Toolchain) -> ServingLimits | None:
    """Return the default limits for the checkpoint on this machine's GPUs.

    If the user set `max_num_tokens`, limit `max_num_seqs` to this value, because a step generates
    at least one token for each sequence. Return None if the GPU is unknown, if the model
    computes embeddings or does not fit, or if `plan_size` rejects the model or an option. Also
    return None for beam search, because the estimate assumes one sequence per request.
    """
    options = request.options
    is_beam_search = (options.max_beam_width or 1) > 1
    if tools.gpu is None or request.checkpoint.is_embedding_model or is_beam_search:
        return None
    size = SizeOptions(**{name: getattr(options, name) for name in SIZE_OPTIONS})
    try:
        facts = read_checkpoint_facts(request.checkpoint)
        plan = plan_size(facts, tools.gpu, options.world_size, size)
    except (BadInput, SourceError):
        # The engine may support the model and its format even if the estimate does not.
        return None
    (only,) = plan.plans
    limits = only.limits
    if limits and options.max_num_tokens:
        number = min(limits.max_num_seqs, options.max_num_tokens)
        return dataclasses.replace(limits, max_num_seqs=number)
    return limits
