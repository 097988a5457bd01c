"""Plan the `trtllm-build` step, which builds an engine from a TensorRT-LLM checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from trtllm_serve_cli.build.build_step import SCRATCH, WORK, BuildStep
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.build.tensorrt.command import (
    RequestedFlag,
    render_arguments,
    request_flag,
    request_switch,
    request_value,
)
from trtllm_serve_cli.build.tensorrt.extra_flags import add_flags
from trtllm_serve_cli.build.tensorrt.flags import flags_of
from trtllm_serve_cli.build.tensorrt.lengths import split_length

TRTLLM_BUILD = "trtllm-build"
# Speculative decoding modes that require `--max_draft_len`. In the modes with heads, the checkpoint
# determines the number of draft tokens.
_WITHOUT_HEADS = ("draft_tokens_external", "lookahead_decoding")


def plan_engine(
    options: EngineOptions, version: Version, dtype: str, estimated_bytes: int
) -> BuildStep:
    """Plan the build of an engine in `WORK` from the checkpoint in `SCRATCH`.

    `dtype` is the data type of unquantized weights. Raise `BadInput` if TensorRT-LLM `version` does
    not support an option or a flag, if `max_seq_len` leaves no room for output tokens, or if a flag
    is set twice.
    """
    requested = [
        RequestedFlag("--checkpoint_dir", (SCRATCH,)),
        RequestedFlag("--output_dir", (WORK,)),
        *_timing_cache(version),
        *request_value("--max_batch_size", options.max_batch_size, "max_batch_size"),
        *split_length(options, flags_of(TRTLLM_BUILD, version), version),
        *request_value("--max_num_tokens", options.max_num_tokens, "max_num_tokens"),
        *request_value("--opt_num_tokens", options.opt_num_tokens, "opt_num_tokens"),
        *request_value("--max_beam_width", options.max_beam_width, "max_beam_width"),
        *_paged_cache(options, version),
        *request_value("--tokens_per_block", options.tokens_per_block, "tokens_per_block"),
        *request_switch("use_paged_context_fmha", options.use_paged_context_fmha),
        *request_switch("remove_input_padding", options.remove_input_padding),
        *request_switch("context_fmha", options.context_fmha),
        *request_value("--gemm_plugin", options.gemm_plugin, "gemm_plugin"),
        *request_value(
            "--gpt_attention_plugin", options.gpt_attention_plugin, "gpt_attention_plugin"
        ),
        *request_switch("multiple_profiles", options.multiple_profiles),
        *request_flag("gather_context_logits", options.gather_context_logits),
        *request_flag("gather_generation_logits", options.gather_generation_logits),
        *_strong_types(options, version),
        *_lora(options, version, dtype),
        *_speculation(options, version),
        *request_value("--workers", options.workers, "workers"),
    ]
    requested = add_flags(requested, options.flags, TRTLLM_BUILD, version)
    ranks = range(options.world_size)
    return BuildStep(
        title=_title(options, version),
        command=(TRTLLM_BUILD, *render_arguments(TRTLLM_BUILD, version, requested)),
        inputs=(SCRATCH, *options.lora_dir, *options.flag_paths),
        outputs=(f"{WORK}/config.json", *(f"{WORK}/rank{rank}.engine" for rank in ranks)),
        estimated_bytes=estimated_bytes,
    )


def _title(options: EngineOptions, version: Version) -> str:
    """Return the step's title.

    If `max_batch_size` is not set and its default in this version is 1, the title includes a
    warning.
    """
    title = "Build the engine"
    if options.world_size > 1:
        title += f" for {options.world_size} GPUs"
    default = flags_of(TRTLLM_BUILD, version)["--max_batch_size"].default
    if options.max_batch_size is None and default == 1:
        title += f" (one request at a time, the default of TensorRT-LLM {version}; "
        title += "--max-batch-size sets another limit)"
    return title


def _timing_cache(version: Version) -> Iterator[RequestedFlag]:
    """Yield the flag that puts the timing cache in `SCRATCH`, not in the working directory.

    Yield nothing for pre-releases of 0.9.0, because 0.9.0 renames the flag.
    """
    for flag in ("--output_timing_cache", "--timing_cache"):
        if flag in flags_of(TRTLLM_BUILD, version):
            yield RequestedFlag(flag, (f"{SCRATCH}/model.cache",))


def _paged_cache(options: EngineOptions, version: Version) -> Iterator[RequestedFlag]:
    if options.paged_kv_cache is None:
        return
    if "--kv_cache_type" in flags_of(TRTLLM_BUILD, version):
        kind = "paged" if options.paged_kv_cache else "continuous"
        yield RequestedFlag("--kv_cache_type", (kind,), "paged_kv_cache")
    else:
        yield from request_switch("paged_kv_cache", options.paged_kv_cache)


def _strong_types(options: EngineOptions, version: Version) -> Iterator[RequestedFlag]:
    """Yield `--strongly_typed` if the weights or the KV cache are fp8.

    Versions before 0.11 require this flag for fp8, and later versions do not have it.
    """
    has_flag = "--strongly_typed" in flags_of(TRTLLM_BUILD, version)
    if has_flag and "fp8" in (options.quantization, options.kv_cache_dtype):
        yield RequestedFlag("--strongly_typed", is_derived=True)


def _lora(options: EngineOptions, version: Version, dtype: str) -> Iterator[RequestedFlag]:
    if not (options.lora_dir or options.lora_target_modules):
        return
    flags = flags_of(TRTLLM_BUILD, version)
    has_auto = "--lora_plugin" in flags and "auto" in flags["--lora_plugin"].choices
    automatic = options.dtype == "auto" and has_auto
    yield RequestedFlag(
        "--lora_plugin",
        ("auto" if automatic else dtype,),
        "lora_target_modules",
        is_derived=True,
    )
    if options.lora_dir:
        yield RequestedFlag("--lora_dir", options.lora_dir, "lora_dir")
    if options.lora_target_modules:
        yield RequestedFlag(
            "--lora_target_modules", options.lora_target_modules, "lora_target_modules"
        )
    yield from request_value("--max_lora_rank", options.max_lora_rank, "max_lora_rank")


def _speculation(options: EngineOptions, version: Version) -> Iterator[RequestedFlag]:
    mode = options.speculative_decoding_mode
    if mode is None:
        return
    # Before TensorRT-LLM 0.10, trtllm-build has no --speculative_decoding_mode flag, and the
    # checkpoint determines whether the engine has Medusa heads. For modes that only later versions
    # support, yield the flag anyway, so that `render_arguments` raises `BadInput`.
    is_named = "--speculative_decoding_mode" in flags_of(TRTLLM_BUILD, version)
    if is_named or mode not in ("draft_tokens_external", "medusa"):
        yield RequestedFlag("--speculative_decoding_mode", (mode,), "speculative_decoding_mode")
    if mode in _WITHOUT_HEADS:
        yield from request_value("--max_draft_len", options.max_draft_len, "max_draft_len")
