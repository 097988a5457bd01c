"""Check engine options before a build, which can take hours.

trtllm-build's own checks are in `tensorrt_llm/builder.py` and `tensorrt_llm/commands/build.py` of
NVIDIA/TensorRT-LLM, 0.9.0 to 0.16.0.
"""

from __future__ import annotations

from packaging.version import Version

from trtllm_serve_cli.build.engine_options import EngineOptions
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
# docs/source/release-notes.md: 0.16 removed support for V100, 0.17 added Blackwell.
_WITHOUT_VOLTA = Version("0.16.0")
_WITH_BLACKWELL = Version("0.17.0")
_WITH_HEADS = ("medusa", "explicit_draft_tokens", "eagle")
_EAGLE_LIMITS = {"max_batch_size": 512, "max_draft_len": 256}


def check_options(
    options: EngineOptions, shape: ModelShape, family: Family, version: Version
) -> None:
    """Raise `BadInput` for the first invalid option. `check_gpu` checks what depends on the GPU."""
    check_parallelism(shape, options.tp, options.pp, options.moe_tp, options.moe_ep)
    if options.pp > 1 and not family.has_pipeline:
        raise BadInput(
            f"{shape.architecture} does not support --pp {options.pp}.",
            why="its converter does not support pipeline parallelism",
            next_step=f"use --tp {options.world_size} instead",
        )
    _check_quantization(options, shape, family, version)
    _check_limits(options)
    _check_lora(options)
    _check_speculation(options, shape)
    _check_paged_context(options, version)


def check_gpu(options: EngineOptions, dtype: str, gpu: Gpu, version: Version) -> None:
    """Raise `BadInput` if the version does not support the GPU, or the GPU a requested format."""
    if gpu.capability < (7, 5) and version >= _WITHOUT_VOLTA:
        raise _unsupported_gpu(gpu, version, "0.16 removed support for V100", "0.15 or earlier")
    if gpu.capability >= (10, 0) and version < _WITH_BLACKWELL:
        raise _unsupported_gpu(gpu, version, "0.17 added support for Blackwell", "0.17 or later")
    weights, cache = options.quantization or "none", options.kv_cache_dtype or "auto"
    if dtype == "bfloat16":
        check_runs("bfloat16", WEIGHT_FORMATS["bfloat16"], gpu, "--dtype float16")
    if weights != "none":
        check_runs(weights, WEIGHT_FORMATS[weights], gpu, "--quantization int8, int4 or int4_awq")
    if cache != "auto":
        check_runs(f"a KV cache of {cache}", KV_FORMATS[cache], gpu, "--kv-cache-dtype int8")


def _unsupported_gpu(gpu: Gpu, version: Version, why: str, versions: str) -> BadInput:
    return BadInput(
        f"TensorRT-LLM {version} does not run on {gpu.name}.",
        why=why,
        next_step=f"use TensorRT-LLM {versions}",
    )


def _check_quantization(
    options: EngineOptions, shape: ModelShape, family: Family, version: Version
) -> None:
    quantization = options.quantization or "none"
    if shape.quantization and (
        quantization != "none" or shape.quantization not in family.input_quantizations
    ):
        raise BadInput(
            f"The checkpoint is already quantized ({shape.quantization}).",
            why=(
                f"it cannot be quantized again, to {quantization}"
                if quantization != "none"
                else f"TensorRT-LLM {version} does not convert such checkpoints of "
                f"{family.architecture}"
            ),
            next_step="import the model's 16-bit checkpoint",
        )
    if quantization == "none" or quantization in family.quantizations:
        return
    later = family.later_quantizations.get(quantization)
    known = ", ".join(("none", *family.quantizations))
    raise BadInput(
        f"TensorRT-LLM {version} does not support --quantization {quantization} for "
        f"{family.architecture}.",
        why=f"it supports {known}" + (f"; {later} added {quantization}" if later else ""),
        next_step="choose one of these" + (f", or use {later} or later" if later else ""),
    )


def _check_limits(options: EngineOptions) -> None:
    for name in _COUNTS:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise _contradiction(f"--{name.replace('_', '-')} {value}", "it must be at least 1")
    longest = options.max_seq_len
    if longest and options.max_input_len and options.max_input_len > longest:
        raise _contradiction(
            f"--max-input-len {options.max_input_len} with --max-seq-len {longest}",
            "a sequence includes both input and output",
        )
    tokens = options.max_num_tokens
    if tokens and options.opt_num_tokens and options.opt_num_tokens > tokens:
        raise _contradiction(
            f"--opt-num-tokens {options.opt_num_tokens} with --max-num-tokens {tokens}",
            "an engine cannot be tuned for more tokens than fit into a step",
        )
    if tokens and options.max_beam_width and options.max_beam_width > tokens:
        raise _contradiction(
            f"--max-beam-width {options.max_beam_width} with --max-num-tokens {tokens}",
            "each beam of a request needs one token in every step",
        )
    if options.multiple_profiles and options.opt_num_tokens:
        raise _contradiction(
            "--multiple-profiles with --opt-num-tokens",
            "each profile is tuned for its own number of tokens",
        )
    if options.remove_input_padding is False and (tokens or options.opt_num_tokens):
        raise _contradiction(
            "--max-num-tokens or --opt-num-tokens without remove_input_padding",
            "padded batches are limited only by --max-batch-size and --max-seq-len",
        )


def _check_lora(options: EngineOptions) -> None:
    if options.max_lora_rank and not (options.lora_dir or options.lora_target_modules):
        raise _contradiction(
            "--max-lora-rank without --lora-target-modules or --lora-dir",
            "an engine for LoRA is built for given modules, or for those of an adapter",
            "add --lora-target-modules attn_q attn_k attn_v, or --lora-dir",
        )


def _check_speculation(options: EngineOptions, shape: ModelShape) -> None:
    mode = options.speculative_decoding_mode
    if mode is None:
        if options.speculative_model or options.max_draft_len:
            raise _contradiction(
                "--speculative-model or --max-draft-len without --speculative-decoding-mode",
                "there are several modes of speculative decoding",
                "add --speculative-decoding-mode",
            )
        return
    if options.gather_context_logits:
        raise _contradiction(
            "--gather-context-logits with speculative decoding",
            "trtllm-build then supports only the logits of generated tokens",
            "use --gather-generation-logits instead",
        )
    if mode in _WITH_HEADS:
        _check_heads(options, shape, mode)
    else:
        _check_drafts(options, mode)


def _check_heads(options: EngineOptions, shape: ModelShape, mode: str) -> None:
    if not options.speculative_model:
        raise _contradiction(
            f"--speculative-decoding-mode {mode} without --speculative-model",
            "its heads are a separate checkpoint",
            "add --speculative-model DIR",
        )
    if shape.architecture != "LlamaForCausalLM":
        raise _contradiction(
            f"--speculative-decoding-mode {mode} for {shape.architecture}",
            "its converter supports only LlamaForCausalLM",
            "use --speculative-decoding-mode draft_tokens_external",
        )
    if mode == "explicit_draft_tokens" and options.max_draft_len:
        raise _contradiction(
            "--max-draft-len with --speculative-decoding-mode explicit_draft_tokens",
            "with ReDrafter, it is the number of beams times their length",
            "omit --max-draft-len",
        )
    for name, largest in _EAGLE_LIMITS.items():
        if mode == "eagle" and (getattr(options, name) or 0) > largest:
            raise _contradiction(
                f"--{name.replace('_', '-')} {getattr(options, name)} with EAGLE",
                f"trtllm-build accepts at most {largest}",
                f"use --{name.replace('_', '-')} {largest}",
            )


def _check_drafts(options: EngineOptions, mode: str) -> None:
    if options.speculative_model:
        raise _contradiction(
            f"--speculative-model with --speculative-decoding-mode {mode}",
            "a draft model is a separate engine, and lookahead decoding does not need one",
            "omit it, and import the draft model under another name",
        )
    if not options.max_draft_len:
        raise _contradiction(
            f"--speculative-decoding-mode {mode} without --max-draft-len",
            "the engine is built for a fixed number of draft tokens",
            "add --max-draft-len 10",
        )


def _check_paged_context(options: EngineOptions, version: Version) -> None:
    """Check the requirements for paged context FMHA, which some versions enable by default."""
    flag = flags_of("trtllm-build", version)["--use_paged_context_fmha"]
    requested = options.use_paged_context_fmha
    if requested is False or (requested is None and flag.default != "enable"):
        return
    next_step = "set use_paged_context_fmha to false"
    subject = "chunked context and KV cache reuse (use_paged_context_fmha)"
    if options.paged_kv_cache is False or options.context_fmha is False:
        off = "paged_kv_cache" if options.paged_kv_cache is False else "context_fmha"
        raise _contradiction(f"{subject} without {off}", "they require it", next_step)
    if options.kv_cache_dtype == "int8":
        raise _contradiction(
            f"{subject} with an int8 KV cache", "trtllm-build rejects the combination", next_step
        )
    if options.kv_cache_dtype == "fp8" and (
        options.quantization != "fp8" or version < Version("0.10.0")
    ):
        raise _contradiction(
            f"{subject} with an fp8 KV cache",
            "trtllm-build supports both only with fp8 weights, since 0.10",
            next_step,
        )


def _contradiction(what: str, why: str, next_step: str = "choose one of them") -> BadInput:
    return BadInput(f"An engine cannot have {what}.", why=why, next_step=next_step)
