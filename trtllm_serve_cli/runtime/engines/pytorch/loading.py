"""Load TensorRT-LLM's `LLM` with arguments for the installed version."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import tensorrt_llm
from tensorrt_llm.llmapi import LLM
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs
from tensorrt_llm.llmapi.llm_utils import update_llm_args_with_extra_dict

from ...log import write_log
from ..engine_arguments import Arguments, explaining_rejections
from .installed import accepted_fields, adapt_arguments
from .sampler import SamplerLimits, choose_sampler, find_limits


def load_llm(arguments: Arguments) -> tuple[Any, SamplerLimits]:
    """Load an `LLM` and return it with its sampler limits.

    Log the arguments that the installed version ignores. If the installed version rejects
    arguments, raise a `ValueError` that names them.
    """
    version = str(getattr(tensorrt_llm, "__version__", ""))
    fields = accepted_fields(TorchLlmArgs)
    # Prompts and responses are token ids, so only guided decoding needs the tokenizer.
    needs_tokenizer = bool(arguments.get("guided_decoding_backend"))
    defaults: Arguments = {"enable_iter_perf_stats": True}
    if not needs_tokenizer:
        defaults["skip_tokenizer_init"] = True
        arguments = {key: value for key, value in arguments.items() if key != "tokenizer"}
    defaults = {key: value for key, value in defaults.items() if key in fields}
    chosen = choose_sampler(arguments, fields, version)
    adapted = adapt_arguments(deepcopy({**defaults, **chosen, **arguments}), TorchLlmArgs, version)
    for each in adapted.ignored:
        write_log("W", f"engine worker: {each}")
    with explaining_rejections("TensorRT-LLM"):
        # `update_llm_args_with_extra_dict` converts each group of arguments to an object of its
        # Pydantic class.
        values = update_llm_args_with_extra_dict({}, adapted.values)
        if adapted.decoding is not None:
            cls, options = adapted.decoding
            values["speculative_config"] = cls(**options)
        llm = LLM(**values)
    return llm, find_limits(adapted, version)
