"""Check engine options before a build, which can take hours.

Unless a comment names another source, the checks are from `tensorrt_llm/builder.py` and
`tensorrt_llm/commands/build.py` in NVIDIA/TensorRT-LLM 0.9.0 to 0.16.0.
"""

from __future__ import annotations

from packaging.version import Version

from trtllm_serve_cli.build.engine_options import EngineOptions, show_option
from trtllm_serve_cli.build.tensorrt.families import Family
from trtllm_serve_cli.build.tensorrt.flags import flags_of
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.gpus import Gpu
from trtllm_serve_cli.sizing.parallelism import check_parallelism
from trtllm_serve_cli.sizing.precision import KV_FORMATS, WEIGHT_FORMATS, check_runs
from trtllm_serve_cli.sizing.shape import ModelShape

_COUNTS = (
    "max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "opt_num_tokens",
    "max_beam_width", "tokens_per_block", "max_lora_rank", "max_draft_len", "calib_size", "workers",
)  # fmt: skip
# TensorRT-LLM's docs/source/release-notes.md lists the removal of Volta GPUs under 0.15, but the
# removal of the V100, a Volta GPU, under 0.16. Therefore, tllm accepts Volta GPUs with versions
# before 0.16. Version 0.17 added support for Blackwell GPUs.
_WITHOUT_VOLTA = Version("0.16.0")
_WITH_BLACKWELL = Version("0.17.0")
# Formats that `trtllm-build` rejects on Blackwell GPUs for data centers (SM 100 to 119), and the
# first version known to do so. Source: `build` in tensorrt_llm/builder.py at 008b2b8d.
_NOT_ON_SM100 = frozenset(
    ("int8", "int4", "int4_awq", "int4_gptq", "w4a8_awq", "int8_sq", "fp8_rowwise")
)
_REJECTS_ON_SM100 = Version("1.2.0.dev0")
# First version in which cpp/tensorrt_llm/kernels/cutlass_kernels/fp8_rowwise_gemm has kernels for
# SM 89 (Ada).
_ROWWISE_ON_ADA = Version("0.15.0")
# First version that converts checkpoints with Llama 3.1's RoPE scaling. Sources:
# docs/source/release-notes.md and issue 2105 of NVIDIA/TensorRT-LLM.
_LLAMA_3_ROPE = Version("0.12.0")
# Earlier versions give each pipeline stage the rounded-down number of layers, so the engine lacks
# the last layers, or the runtime rejects it. Sources: `pp_layers` in tensorrt_llm/mapping.py before
# pull request 3429, and cpp/include/tensorrt_llm/runtime/modelConfig.h before pull request 4399.
_UNEVEN_STAGES = Version("0.20.0.dev0")
# Weight formats with which paged context FMHA can read an fp8 KV cache, and the first version that
# supports each. Sources: docs/source/release-notes.md for w4a8_awq, and `build` in
# tensorrt_llm/builder.py at 008b2b8d for nvfp4, which is assumed to be supported since the release
# that added the format.
_WITH_FP8_CONTEXT = {
    "fp8": Version("0.10.0"),
    "nvfp4": Version("0.17.0"),
    "w4a8_awq": Version("0.17.0"),
}
_SMOOTHING = {"smoothquant", "per_token", "per_channel"}
_GPTQ_PATHS = ("quant_ckpt_path", "modelopt_quant_ckpt_path", "ammo_quant_ckpt_path")
_IMPORT_WHOLE = "import the model's 16-bit checkpoint"
_WITH_HEADS = ("medusa", "explicit_draft_tokens", "eagle")
_EAGLE_LIMITS = {"max_batch_size": 512, "max_draft_len": 256}


def check_options(
    options: EngineOptions, shape: ModelShape, family: Family, version: Version
) -> None:
    """Raise `BadInput` for the first invalid option.

    Also raise `BadInput` if the checkpoint is quantized and TensorRT-LLM `version` cannot convert
    it. `check_gpu` performs the checks that depend on the GPU.
    """
    _check_rope(shape, version)
    check_parallelism(shape, options.tp, options.pp, options.moe_tp, options.moe_ep)
    if options.pp > 1 and not family.has_pipeline:
        raise BadInput(
            f"{shape.architecture} does not support --pp {options.pp}.",
            why="the architecture's converter does not support pipeline parallelism",
            next_step=f"use --tp {options.world_size} instead",
        )
    _check_stages(options, shape, version)
    _check_quantization(options, shape, family, version)
    _check_limits(options)
    _check_lora(options)
    _check_speculation(options, shape)
    _check_paged_context(options, version)


def check_legacy_options(options: EngineOptions, shape: ModelShape, version: Version) -> None:
    """Raise `BadInput` for the first option that is invalid for a version that uses build.py.

    Also raise `BadInput` if the checkpoint is already quantized.
    """
    _check_rope(shape, version)
    check_parallelism(shape, options.tp, options.pp)
    _check_stages(options, shape, version)
    if shape.quantization:
        raise _quantized_checkpoint(
            shape.quantization, "build.py does not read quantized checkpoints"
        )
    _check_limits(options)
    _check_lora(options)


def check_gpu(options: EngineOptions, dtype: str, gpu: Gpu, version: Version) -> None:
    """Raise `BadInput` if the GPU is not supported.

    TensorRT-LLM `version` must support the GPU, and the GPU must support `dtype` and the requested
    formats. If fp8_rowwise is requested, `version` must support this format on the GPU.
    """
    if gpu.capability < (7, 5) and version >= _WITHOUT_VOLTA:
        raise _unsupported_gpu(
            gpu, version, "version 0.16 removed support for the V100", "0.15 or earlier"
        )
    if gpu.capability >= (10, 0) and version < _WITH_BLACKWELL:
        raise _unsupported_gpu(
            gpu, version, "version 0.17 added support for Blackwell GPUs", "0.17 or later"
        )
    weights, cache = options.quantization or "none", options.kv_cache_dtype or "auto"
    if dtype == "bfloat16":
        check_runs("bfloat16", WEIGHT_FORMATS["bfloat16"], gpu, "pass --dtype float16")
    if weights != "none":
        next_step = "pass --quantization int8, int4 or int4_awq"
        check_runs(f"{weights} weights", WEIGHT_FORMATS[weights], gpu, next_step)
    if weights == "fp8_rowwise" and version < _ROWWISE_ON_ADA and gpu.capability < (9, 0):
        raise BadInput(
            f"TensorRT-LLM {version} does not support --quantization fp8_rowwise on {gpu.name}.",
            why="in this version, the fp8_rowwise kernels run only on Hopper GPUs",
            next_step="use TensorRT-LLM 0.15 or later",
        )
    if version >= _REJECTS_ON_SM100 and (10, 0) <= gpu.capability < (12, 0):
        if weights in _NOT_ON_SM100:
            raise _not_on_sm100(f"--quantization {weights}", gpu, version, "fp8 or nvfp4")
        if cache == "int8":
            raise _not_on_sm100("--kv-cache-dtype int8", gpu, version, "fp8")
    if cache != "auto":
        check_runs(
            f"{cache} for the KV cache", KV_FORMATS[cache], gpu, "pass --kv-cache-dtype int8"
        )


def _not_on_sm100(option: str, gpu: Gpu, version: Version, others: str) -> BadInput:
    name, _ = option.split()
    return BadInput(
        f"TensorRT-LLM {version} does not support {option} on {gpu.name}.",
        why="on Blackwell GPUs for data centers, trtllm-build rejects INT8 and INT4 formats and "
        "FP8 with per-channel scales",
        next_step=f"pass {name} {others}, or omit {name}",
    )


def _unsupported_gpu(gpu: Gpu, version: Version, why: str, versions: str) -> BadInput:
    return BadInput(
        f"TensorRT-LLM {version} does not run on {gpu.name}.",
        why=why,
        next_step=f"use TensorRT-LLM {versions}",
    )


def _check_rope(shape: ModelShape, version: Version) -> None:
    if shape.rope_type == "llama3" and version < _LLAMA_3_ROPE:
        raise BadInput(
            f"TensorRT-LLM {version} does not convert this model.",
            why="version 0.12 added support for the RoPE scaling of Llama 3.1 and later",
            next_step="use TensorRT-LLM 0.12 or later",
        )


def _check_stages(options: EngineOptions, shape: ModelShape, version: Version) -> None:
    if version >= _UNEVEN_STAGES or shape.num_layers % options.pp == 0:
        return
    possible = (str(pp) for pp in range(1, 17) if shape.num_layers % pp == 0)
    raise BadInput(
        f"TensorRT-LLM {version} cannot build an engine with --pp {options.pp}.",
        why="in this version, each pipeline stage must have the same number of layers, but the "
        f"model has {shape.num_layers} layers",
        next_step=f"set --pp to one of {', '.join(possible)}, or use TensorRT-LLM 0.20 or later",
    )


def _check_quantization(
    options: EngineOptions, shape: ModelShape, family: Family, version: Version
) -> None:
    quantization = options.quantization or "none"
    is_gptq = quantization == "int4_gptq" and shape.quantization == "gptq" and family.converts_gptq
    if shape.quantization and not is_gptq:
        if quantization != "none":
            raise _quantized_checkpoint(
                shape.quantization,
                f"a quantized checkpoint cannot be quantized again to {quantization}",
            )
        if shape.quantization not in family.input_quantizations:
            raise _quantized_checkpoint(
                shape.quantization,
                f"TensorRT-LLM {version} does not convert {family.architecture} checkpoints "
                "with this quantization",
                "add --quantization int4_gptq"
                if family.converts_gptq and shape.quantization == "gptq"
                else _IMPORT_WHOLE,
            )
    if quantization == "int4_gptq" and not is_gptq and options.flags.keys().isdisjoint(_GPTQ_PATHS):
        raise _contradiction(
            "--quantization int4_gptq requires a file with the quantized weights",
            "the converter does not quantize the weights, but reads quantized weights from an "
            "AutoGPTQ file",
            "add --build-option quant_ckpt_path=FILE (ammo_quant_ckpt_path before 0.10, "
            "modelopt_quant_ckpt_path in 0.10)",
        )
    if quantization != "int8_sq" and (smoothing := _SMOOTHING & options.flags.keys()):
        raise _contradiction(
            f"The {min(smoothing)} flag requires --quantization int8_sq",
            "the flag has an effect only with SmoothQuant",
            f"add --quantization int8_sq, or omit {min(smoothing)}",
        )
    if quantization == "none" or quantization in family.quantizations:
        return
    later = family.later_quantizations.get(quantization)
    known = ", ".join((*family.quantizations, "none"))
    raise BadInput(
        f"TensorRT-LLM {version} does not support --quantization {quantization} for "
        f"{family.architecture}.",
        why=f"the supported values are {known}"
        + (f"; TensorRT-LLM {later} added support for {quantization}" if later else ""),
        next_step="pass a supported value"
        + (f", or use TensorRT-LLM {later} or later" if later else ""),
    )


def _quantized_checkpoint(quantization: str, why: str, next_step: str = _IMPORT_WHOLE) -> BadInput:
    return BadInput(
        f"The checkpoint is already quantized ({quantization}).", why=why, next_step=next_step
    )


def _check_limits(options: EngineOptions) -> None:
    for name in _COUNTS:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise _contradiction(
                f"{show_option(name)} cannot be {value}",
                "the value must be at least 1",
                f"set {show_option(name)} to 1 or more, or omit the option",
            )
    longest = options.max_seq_len
    if longest and options.max_input_len and options.max_input_len > longest:
        raise _contradiction(
            f"--max-input-len {options.max_input_len} exceeds --max-seq-len {longest}",
            "the sequence length includes both the input and the output",
        )
    tokens = options.max_num_tokens
    if tokens and options.opt_num_tokens and options.opt_num_tokens > tokens:
        raise _contradiction(
            f"opt_num_tokens {options.opt_num_tokens} exceeds --max-num-tokens {tokens}",
            "each step processes at most --max-num-tokens tokens",
        )
    if tokens and options.max_beam_width and options.max_beam_width > tokens:
        raise _contradiction(
            f"--max-beam-width {options.max_beam_width} exceeds --max-num-tokens {tokens}",
            "each step processes one token for each beam of a request",
        )
    if options.multiple_profiles and options.opt_num_tokens:
        raise _contradiction(
            "multiple_profiles and opt_num_tokens cannot be combined",
            "each profile is optimized for a different number of tokens",
        )
    if options.remove_input_padding is False and (tokens or options.opt_num_tokens):
        raise _contradiction(
            f"{'--max-num-tokens' if tokens else 'opt_num_tokens'} requires remove_input_padding",
            "padded batches are limited only by --max-batch-size and --max-seq-len",
        )


def _check_lora(options: EngineOptions) -> None:
    if options.max_lora_rank and not (options.lora_dir or options.lora_target_modules):
        raise _contradiction(
            "max_lora_rank requires lora_target_modules or lora_dir",
            "an engine supports LoRA adapters only for the modules that one of these options "
            "selects",
            "add --build-option lora_dir=DIR or, for example, "
            "--build-option lora_target_modules=attn_q,attn_k,attn_v",
        )


def _check_speculation(options: EngineOptions, shape: ModelShape) -> None:
    mode = options.speculative_decoding_mode
    if mode is None:
        if options.speculative_model or options.max_draft_len:
            raise _contradiction(
                f"{'speculative_model' if options.speculative_model else 'max_draft_len'} requires "
                "speculative_decoding_mode",
                "the option has an effect only with speculative decoding",
                "add --build-option speculative_decoding_mode=MODE",
            )
        return
    if options.gather_context_logits:
        raise _contradiction(
            "gather_context_logits and speculative decoding cannot be combined",
            "with speculative decoding, trtllm-build supports only generation logits",
            "pass --build-option gather_generation_logits=true instead",
        )
    if mode in _WITH_HEADS:
        _check_heads(options, shape, mode)
    else:
        _check_drafts(options, mode)


def _check_heads(options: EngineOptions, shape: ModelShape, mode: str) -> None:
    if not options.speculative_model:
        raise _contradiction(
            f"speculative_decoding_mode {mode} requires speculative_model",
            "the heads for this mode are in a separate checkpoint",
            "add --build-option speculative_model=DIR",
        )
    if shape.architecture != "LlamaForCausalLM":
        raise _contradiction(
            f"speculative_decoding_mode {mode} does not support {shape.architecture}",
            "the converter for this mode supports only LlamaForCausalLM",
            "pass --build-option speculative_decoding_mode=draft_tokens_external",
        )
    if mode == "explicit_draft_tokens" and options.max_draft_len:
        raise _contradiction(
            "speculative_decoding_mode explicit_draft_tokens does not support max_draft_len",
            "ReDrafter calculates the value as the number of beams times the beam length",
            "omit max_draft_len",
        )
    for name, largest in _EAGLE_LIMITS.items():
        if mode == "eagle" and (getattr(options, name) or 0) > largest:
            raise _contradiction(
                f"{show_option(name)} {getattr(options, name)} is too high for EAGLE",
                f"trtllm-build accepts at most {largest}",
                f"set {show_option(name)} to {largest} or less",
            )


def _check_drafts(options: EngineOptions, mode: str) -> None:
    if options.speculative_model:
        is_external = mode == "draft_tokens_external"
        raise _contradiction(
            f"speculative_decoding_mode {mode} does not support speculative_model",
            "the draft model requires a separate engine"
            if is_external
            else "this mode does not use a draft model",
            "omit speculative_model, and import the draft model under another name"
            if is_external
            else "omit speculative_model",
        )
    if not options.max_draft_len:
        raise _contradiction(
            f"speculative_decoding_mode {mode} requires max_draft_len",
            "the engine is built for a maximum number of draft tokens per step",
            "add, for example, --build-option max_draft_len=10",
        )


def _check_paged_context(options: EngineOptions, version: Version) -> None:
    """Raise `BadInput` if paged context FMHA is enabled but its requirements are not met.

    Some TensorRT-LLM versions enable paged context FMHA by default.
    """
    flag = flags_of("trtllm-build", version)["--use_paged_context_fmha"]
    requested = options.use_paged_context_fmha
    if requested is False or (requested is None and flag.default != "enable"):
        return
    next_step = "add --build-option use_paged_context_fmha=false"
    if options.paged_kv_cache is False or options.context_fmha is False:
        off = "paged_kv_cache" if options.paged_kv_cache is False else "context_fmha"
        raise _contradiction(
            f"use_paged_context_fmha requires {off}",
            f"the option enables chunked context and KV cache reuse, which require {off}",
            next_step,
        )
    if options.kv_cache_dtype == "int8":
        raise _contradiction(
            "use_paged_context_fmha does not support an int8 KV cache",
            "trtllm-build rejects the combination",
            next_step,
        )
    since = _WITH_FP8_CONTEXT.get(options.quantization or "none")
    if options.kv_cache_dtype == "fp8" and (since is None or version < since):
        raise _contradiction(
            "use_paged_context_fmha does not support an fp8 KV cache in this build",
            "trtllm-build supports the combination only with fp8 weights in TensorRT-LLM 0.10 or "
            "later, and with nvfp4 or w4a8_awq weights in 0.17 or later",
            next_step,
        )


def _contradiction(
    what: str, why: str, next_step: str = "change or omit one of the two options"
) -> BadInput:
    return BadInput(f"{what}.", why=why, next_step=next_step)
