"""Convert engine options to arguments for `LLM`, the main class of TensorRT-LLM's LLM API.

`LLM` rejects unknown arguments, so the result depends on the TensorRT-LLM version. When a model is
loaded, `runtime/engines/pytorch/installed.py` adapts the arguments to the installed classes,
because release candidates of the same version differ. Sources of the names and versions:
tensorrt_llm/llmapi/llm_args.py in NVIDIA/TensorRT-LLM 1.0 to 1.3, and the documentation on
sampling, speculative decoding and quantization.
"""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from trtllm_serve_cli.build.engine_options import EngineOptions, refuse_unsupported
from trtllm_serve_cli.build.tensorrt.versions import FIRST_WITH_PYTORCH, parse_version
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.serving_limits import ServingLimits

Arguments = dict[str, Any]

# First TensorRT-LLM version with each feature. The suffix .dev0 sorts before release candidates, so
# release candidates also have the feature. Versions after 1.3 are assumed to have the same features
# as 1.3.
_SPECULATION_RENAMED = Version("1.3.dev0")
# First version whose default sampler supports penalties, bad words and beam search options.
_ONE_SAMPLER = Version("1.3.0rc26")
_SAMPLER_TYPE = Version("1.1.dev0")
_TOKENS_PER_BLOCK = Version("1.1.dev0")
_NVFP4_KV_CACHE = Version("1.3.dev0")

# Maps options to arguments that take the same values.
_PLAIN = {
    "moe_tp": "moe_tensor_parallel_size",
    "moe_ep": "moe_expert_parallel_size",
    "max_batch_size": "max_batch_size",
    "max_input_len": "max_input_len",
    "max_seq_len": "max_seq_len",
    "max_num_tokens": "max_num_tokens",
    "max_beam_width": "max_beam_width",
}
# Options for features that are always enabled in the PyTorch backend. The value true has no effect,
# and tllm rejects the value false.
_ALWAYS = ("paged_kv_cache", "remove_input_padding", "context_fmha", "use_paged_context_fmha")
_SUPPORTED = frozenset(
    (
        *_PLAIN, *_ALWAYS, "tp", "pp", "dtype", "quantization", "kv_cache_dtype",
        "tokens_per_block", "gather_generation_logits", "lora_dir", "lora_target_modules",
        "max_lora_rank", "speculative_decoding_mode", "speculative_model", "max_draft_len",
    )
)  # fmt: skip
# Values of `quant_method` in config.json that at least one version supports. Other methods, for
# example awq and gptq, require hf_quant_config.json. Source: `_update_from_hf_quant_config` in
# tensorrt_llm/llmapi/llm_utils.py, which raises NotImplementedError for other values.
_QUANT_METHODS = ("compressed-tensors", "fp8", "modelopt", "mxfp4", "mxfp8", "nvfp4")
# Value of the `max_matching_ngram_size` argument, as in TensorRT-LLM's example.
_NGRAM_SIZE = 4


def plan_llm_limits(limits: ServingLimits) -> Arguments:
    """Return the `LLM` arguments for the serving limits.

    The token limit is `max_unsplit_tokens`, because `LLM` rejects prompts longer than
    `max_num_tokens` unless chunked prefill is enabled.
    """
    return {"max_batch_size": limits.max_num_seqs, "max_num_tokens": limits.max_unsplit_tokens}


def plan_llm_arguments(
    options: EngineOptions,
    version: str,
    *,
    weights: str | None = None,
    trust_remote_code: bool = False,
) -> Arguments:
    """Return the `LLM` arguments for this TensorRT-LLM version, without the model path.

    `weights` is the checkpoint's quantization as a value of the `quantization` option, or None for
    unquantized weights. Raise `BadInput` if the version or the PyTorch backend does not support an
    option, or if an option requires or excludes another option.
    """
    number = _parse(version)
    refuse_unsupported(options, "pytorch", supported=_SUPPORTED)
    _check_always(options)
    _check_weights(options, weights)
    arguments: Arguments = {
        "tensor_parallel_size": options.tp,
        "pipeline_parallel_size": options.pp,
    }
    for option, argument in _PLAIN.items():
        if (value := getattr(options, option)) is not None:
            arguments[argument] = value
    if options.dtype != "auto":
        arguments["dtype"] = options.dtype
    if options.gather_generation_logits:
        arguments["gather_generation_logits"] = True
    if trust_remote_code:
        arguments["trust_remote_code"] = True
    if kv_cache := _kv_cache(options, number):
        arguments["kv_cache_config"] = kv_cache
    return arguments | _adapters(options) | _decoding(options, number)


def check_quantization_method(method: str | None) -> None:
    """Raise `BadInput` if no version can load checkpoints with this `quant_method`.

    `method` is None for other checkpoints, including those with hf_quant_config.json.
    """
    if method is None or method.startswith(_QUANT_METHODS):
        return
    raise BadInput(
        f"The pytorch engine kind cannot serve {method} checkpoints.",
        why="TensorRT-LLM's PyTorch backend supports only checkpoints that NVIDIA ModelOpt has "
        "quantized, and the quantization methods compressed-tensors, fp8, mxfp4, mxfp8 and nvfp4",
        next_step="use a checkpoint from NVIDIA's organization on Hugging Face or one that is not "
        "quantized, or choose --engine vllm",
    )


def _parse(version: str) -> Version:
    """Parse a version. Raise `BadInput` for a version without a stable LLM API."""
    parsed = parse_version(version)
    if parsed < FIRST_WITH_PYTORCH:
        raise BadInput(
            f"TensorRT-LLM {version} does not support the pytorch engine kind.",
            why="the LLM API was not stable before 1.0",
            next_step="use TensorRT-LLM 1.0 or later (Triton 25.09 or later), or choose "
            "--engine tensorrt",
        )
    return parsed


def _kv_cache(options: EngineOptions, version: Version) -> Arguments:
    config: Arguments = {}
    dtype = options.kv_cache_dtype
    if dtype == "int8":
        raise BadInput(
            "The pytorch engine kind does not support kv_cache_dtype int8.",
            why="TensorRT-LLM's PyTorch backend supports only auto, fp8 and nvfp4",
            next_step="set kv_cache_dtype to fp8, or choose --engine tensorrt",
        )
    if dtype == "nvfp4":
        _require_version(version, _NVFP4_KV_CACHE, "kv_cache_dtype nvfp4")
    if dtype not in (None, "auto"):
        config["dtype"] = dtype
    if options.tokens_per_block is not None:
        _require_version(version, _TOKENS_PER_BLOCK, "tokens_per_block")
        config["tokens_per_block"] = options.tokens_per_block
    return config


def _adapters(options: EngineOptions) -> Arguments:
    if not (options.lora_dir or options.lora_target_modules or options.max_lora_rank):
        return {}
    if not (options.lora_dir or options.lora_target_modules):
        raise BadInput(
            "max_lora_rank requires lora_target_modules or lora_dir.",
            why="TensorRT-LLM requires the names of the modules that LoRA adapters apply to",
            next_step=(
                "list the modules, for example --build-option "
                "lora_target_modules=attn_q,attn_k,attn_v, or set an adapter folder with "
                "--build-option lora_dir=DIR"
            ),
        )
    config: Arguments = {}
    if options.lora_dir:
        config["lora_dir"] = list(options.lora_dir)
    if options.lora_target_modules:
        config["lora_target_modules"] = list(options.lora_target_modules)
    if options.max_lora_rank is not None:
        config["max_lora_rank"] = options.max_lora_rank
    return {"enable_lora": True, "lora_config": config}


def _decoding(options: EngineOptions, version: Version) -> Arguments:
    """Return the arguments for speculative decoding, beam search or sampling."""
    is_beam_search = (options.max_beam_width or 1) > 1
    if options.speculative_decoding_mode is not None:
        if is_beam_search:
            raise BadInput(
                "Speculative decoding cannot be combined with "
                f"max_beam_width {options.max_beam_width}.",
                next_step="omit speculative_decoding_mode or max_beam_width",
            )
        return _speculation(options, version)
    for name in ("speculative_model", "max_draft_len"):
        if getattr(options, name) is not None:
            raise BadInput(
                f"{name} requires speculative_decoding_mode.",
                next_step="set speculative_decoding_mode to eagle, ngram, mtp or "
                "draft_tokens_external",
            )
    arguments = _sampler(version)
    if is_beam_search:
        # According to TensorRT-LLM's documentation, beam search works only with these two settings.
        return arguments | {"disable_overlap_scheduler": True, "cuda_graph_config": None}
    # Without padding, a batch uses a CUDA graph only if a graph was captured for its exact size.
    return arguments | {"cuda_graph_config": {"enable_padding": True}}


def _sampler(version: Version) -> Arguments:
    """Return the argument that selects a sampler with support for penalties and bad words.

    Since TensorRT-LLM 1.3.0rc26, the default sampler supports both, so no argument is required.
    """
    if version >= _ONE_SAMPLER:
        return {}
    if version >= _SAMPLER_TYPE:
        return {"sampler_type": "TRTLLMSampler"}
    return {"enable_trtllm_sampler": True}


def _speculation(options: EngineOptions, version: Version) -> Arguments:
    mode, length = options.speculative_decoding_mode, options.max_draft_len
    is_renamed = version >= _SPECULATION_RENAMED
    # In ngram and draft_tokens_external mode, draft tokens are generated between steps, so a step
    # must finish before the next step starts.
    no_overlap = {"disable_overlap_scheduler": True}
    if mode == "mtp":
        _refuse_speculative_model(options)
        config: Arguments = {"decoding_type": "MTP", "num_nextn_predict_layers": length or 1}
        return {"speculative_config": config}
    if mode == "ngram":
        _refuse_speculative_model(options)
        drafts = {"max_draft_len": _need_length(options), "max_matching_ngram_size": _NGRAM_SIZE}
        return {"speculative_config": {"decoding_type": "NGram", **drafts}, **no_overlap}
    if mode == "eagle":
        config = {"decoding_type": "Eagle3" if is_renamed else "Eagle"}
        return {"speculative_config": config | _drafter(options, version)}
    if mode == "draft_tokens_external":
        config = {"decoding_type": "Draft_Target" if is_renamed else "DraftTarget"}
        return {"speculative_config": config | _drafter(options, version), **no_overlap}
    raise BadInput(
        f"The pytorch engine kind does not support speculative_decoding_mode {mode}.",
        why=(
            "TensorRT-LLM's PyTorch backend supports only eagle, mtp, ngram and "
            "draft_tokens_external"
        ),
        next_step="choose a supported mode, or choose --engine tensorrt",
    )


def _drafter(options: EngineOptions, version: Version) -> Arguments:
    if options.speculative_model is None:
        raise BadInput(
            f"speculative_decoding_mode {options.speculative_decoding_mode} requires a draft "
            "model.",
            next_step="set the draft model folder with --build-option speculative_model=DIR",
        )
    name = "speculative_model" if version >= _SPECULATION_RENAMED else "speculative_model_dir"
    return {"max_draft_len": _need_length(options), name: options.speculative_model}


def _need_length(options: EngineOptions) -> int:
    if options.max_draft_len is None:
        raise BadInput(
            f"speculative_decoding_mode {options.speculative_decoding_mode} requires "
            "max_draft_len.",
            next_step="set the number of draft tokens per step, for example "
            "--build-option max_draft_len=3",
        )
    return options.max_draft_len


def _refuse_speculative_model(options: EngineOptions) -> None:
    if options.speculative_model is not None:
        raise BadInput(
            "speculative_model cannot be used with speculative_decoding_mode "
            f"{options.speculative_decoding_mode}.",
            why="this mode does not use a draft model",
            next_step="omit speculative_model",
        )


def _check_always(options: EngineOptions) -> None:
    for name in _ALWAYS:
        if getattr(options, name) is False:
            raise BadInput(
                f"The pytorch engine kind cannot disable {name}.",
                why="TensorRT-LLM's PyTorch backend always enables this feature",
                next_step=f"omit {name}, or choose --engine tensorrt",
            )


def _check_weights(options: EngineOptions, weights: str | None) -> None:
    """Raise `BadInput` if the requested quantization differs from the checkpoint's quantization."""
    requested = options.quantization
    if requested is None or requested == (weights or "none"):
        return
    raise BadInput(
        f"The pytorch engine kind cannot serve this checkpoint with --quantization {requested}.",
        why=(
            "the pytorch engine kind does not convert weights, and the checkpoint's weights are "
            f"{weights or 'not quantized'}"
        ),
        next_step="use a checkpoint with this quantization, for example from NVIDIA's "
        "organization on Hugging Face, or choose --engine tensorrt"
        if requested != "none"
        else "omit --quantization, or use a checkpoint that is not quantized",
    )


def _require_version(version: Version, since: Version, option: str) -> None:
    if version < since:
        first, current = (f"{each.major}.{each.minor}" for each in (since, version))
        raise BadInput(
            f"The LLM API of TensorRT-LLM {current} does not support {option}.",
            why=f"support was added in {first}",
            next_step=f"omit {option}, or use TensorRT-LLM {first} or later",
        )
