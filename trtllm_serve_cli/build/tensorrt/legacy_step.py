"""Plan engines for TensorRT-LLM versions that use a model's build.py instead of trtllm-build.

`build.py` reads a Hugging Face checkpoint and writes the engine in one step. For gpt models,
`hf_gpt_convert.py` first converts the weights.

Sources: examples/llama/build.py, examples/gpt/build.py and examples/gpt/hf_gpt_convert.py in
NVIDIA/TensorRT-LLM 0.5.0 to 0.8.0, and their README.md files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from packaging.version import Version

from trtllm_serve_cli.build.build_step import SCRATCH, WORK, BuildStep
from trtllm_serve_cli.build.engine_options import EngineOptions, list_chosen, show_option
from trtllm_serve_cli.build.tensorrt.command import (
    RequestedFlag,
    render_arguments,
    request_flag,
    request_value,
)
from trtllm_serve_cli.build.tensorrt.extra_flags import add_flags
from trtllm_serve_cli.build.tensorrt.flags import flags_of
from trtllm_serve_cli.build.tensorrt.lengths import split_length
from trtllm_serve_cli.build.tensorrt.toolkit import Toolkit
from trtllm_serve_cli.errors import BadInput

_SCRIPT = "build.py"
_CONVERTER = "hf_gpt_convert.py"
_OPTIONS = (
    "tp", "pp", "dtype", "quantization", "max_batch_size", "max_input_len", "max_seq_len",
    "max_num_tokens", "max_beam_width", "paged_kv_cache", "tokens_per_block",
    "use_paged_context_fmha", "remove_input_padding", "context_fmha", "gemm_plugin",
    "gpt_attention_plugin", "gather_context_logits", "gather_generation_logits", "lora_dir",
    "lora_target_modules", "max_lora_rank", "flags", "kv_cache_dtype",
)  # fmt: skip
# Maps architectures to values of hf_gpt_convert.py's `--model` flag. Other architectures use the
# flag's default, gpt2.
_GPT_MODELS = {"GPTBigCodeForCausalLM": "starcoder"}


def plan_legacy(
    architecture: str,
    family: str,
    checkpoint: Path,
    options: EngineOptions,
    toolkit: Toolkit,
    dtype: str,
    estimated_bytes: int,
) -> tuple[BuildStep, ...]:
    """Plan the build of an engine in `WORK` from a Hugging Face checkpoint.

    `family` is the folder under `examples/` that contains build.py. `dtype` is the data type of
    unquantized weights. Raise `BadInput` if an option is not supported, if options contradict each
    other, or if a flag is set twice.
    """
    version = toolkit.version
    _check_options(options, version)
    program, converter = f"{family}/{_SCRIPT}", f"{family}/{_CONVERTER}"
    weights = checkpoint
    steps: tuple[BuildStep, ...] = ()
    if converter in find_legacy_programs(family, version):
        weights = Path(f"{SCRATCH}/{options.tp}-gpu")
        requested = _conversion(architecture, checkpoint, options, dtype)
        requested = add_flags(requested, options.flags, converter, version)
        steps = (
            BuildStep(
                title="Convert the checkpoint for TensorRT-LLM",
                command=_command(toolkit, converter, requested),
                inputs=(str(checkpoint),),
                outputs=(f"{weights}/config.ini",),
                estimated_bytes=estimated_bytes,
            ),
        )
    requested = list(_build(options, program, version, dtype, weights))
    requested = add_flags(requested, options.flags, program, version)
    ranks = options.world_size
    return (
        *steps,
        BuildStep(
            title="Build the engine" if ranks == 1 else f"Build the engine for {ranks} GPUs",
            command=_command(toolkit, program, requested),
            inputs=(str(weights), *options.lora_dir, *options.flag_paths),
            outputs=(
                f"{WORK}/config.json",
                *(f"{WORK}/{name_engine(family, dtype, options, rank)}" for rank in range(ranks)),
            ),
            estimated_bytes=estimated_bytes,
        ),
    )


def find_legacy_programs(family: str, version: Version) -> tuple[str, ...]:
    """Return the programs that build the family's engines in `version`, in execution order."""
    programs = (f"{family}/{_CONVERTER}", f"{family}/{_SCRIPT}")
    return tuple(each for each in programs if flags_of(each, version))


def name_engine(family: str, dtype: str, options: EngineOptions, rank: int) -> str:
    """Return the file name that build.py uses for a rank's engine."""
    stages = f"_pp{options.pp}" if options.pp > 1 else ""
    return f"{family}_{dtype}_tp{options.tp}{stages}_rank{rank}.engine"


def _command(toolkit: Toolkit, program: str, requested: list[RequestedFlag]) -> tuple[str, ...]:
    script = toolkit.examples_dir / program
    return (toolkit.python, str(script), *render_arguments(program, toolkit.version, requested))


def _conversion(
    architecture: str, checkpoint: Path, options: EngineOptions, dtype: str
) -> list[RequestedFlag]:
    return [
        RequestedFlag("--in-file", (str(checkpoint),)),
        RequestedFlag("--out-dir", (SCRATCH,)),
        *request_value("--model", _GPT_MODELS.get(architecture), ""),
        RequestedFlag("--tensor-parallelism", (options.tp,), "tp"),
        RequestedFlag("--storage-type", (dtype,), "dtype"),
    ]


def _build(
    options: EngineOptions, program: str, version: Version, dtype: str, weights: Path
) -> Iterator[RequestedFlag]:
    """Yield the flags of build.py.

    In-flight batching requires the attention plugin, a paged KV cache and inputs without padding.
    build.py disables all three by default, so the plan enables each one unless an option disables
    it.
    """
    flags = flags_of(program, version)
    yield RequestedFlag("--model_dir", (str(weights),))
    yield RequestedFlag("--dtype", (dtype,), "dtype")
    attention = _plugin(options.gpt_attention_plugin, dtype)
    packs, pages = options.remove_input_padding is not False, options.paged_kv_cache is not False
    if attention:
        yield RequestedFlag("--use_gpt_attention_plugin", (attention,), "gpt_attention_plugin")
    if attention and packs and pages:
        yield RequestedFlag("--use_inflight_batching", is_derived=True)
    yield from request_flag("paged_kv_cache", pages)
    yield from request_flag("remove_input_padding", packs)
    if gemm := _plugin(options.gemm_plugin, dtype):
        yield RequestedFlag("--use_gemm_plugin", (gemm,), "gemm_plugin")
    # build.py accepts a maximum number of tokens only with fused attention kernels.
    if options.context_fmha or options.max_num_tokens:
        yield RequestedFlag("--enable_context_fmha", option="context_fmha")
    if options.quantization in ("int8", "int4"):
        yield RequestedFlag("--use_weight_only", option="quantization")
        yield RequestedFlag("--weight_only_precision", (options.quantization,), "quantization")
    yield from request_value("--max_batch_size", options.max_batch_size, "max_batch_size")
    yield from split_length(options, flags, version)
    yield from request_value("--max_num_tokens", options.max_num_tokens, "max_num_tokens")
    yield from request_value("--max_beam_width", options.max_beam_width, "max_beam_width")
    yield from request_value("--tokens_per_block", options.tokens_per_block, "tokens_per_block")
    yield from request_flag("use_paged_context_fmha", bool(options.use_paged_context_fmha))
    yield from request_flag("gather_context_logits", options.gather_context_logits)
    yield from request_flag("gather_generation_logits", options.gather_generation_logits)
    yield from _lora(options, dtype)
    if options.world_size > 1:
        yield RequestedFlag("--world_size", (options.world_size,), "tp")
        if "--tp_size" in flags:
            yield RequestedFlag("--tp_size", (options.tp,), "tp")
    if options.pp > 1:
        yield RequestedFlag("--pp_size", (options.pp,), "pp")
    yield RequestedFlag("--timing_cache", (f"{SCRATCH}/model.cache",))
    yield RequestedFlag("--output_dir", (WORK,))


def _plugin(option: str | None, dtype: str) -> str | None:
    """Return the data type of a plugin, or `None` if the option disables the plugin."""
    if option == "disable":
        return None
    return dtype if option in (None, "auto") else option


def _lora(options: EngineOptions, dtype: str) -> Iterator[RequestedFlag]:
    if options.lora_dir or options.lora_target_modules:
        yield RequestedFlag("--use_lora_plugin", (dtype,), "lora_dir", is_derived=True)
    if options.lora_dir:
        yield RequestedFlag("--hf_lora_dir", options.lora_dir, "lora_dir")
    if options.lora_target_modules:
        yield RequestedFlag(
            "--lora_target_modules", options.lora_target_modules, "lora_target_modules"
        )
    yield from request_value("--max_lora_rank", options.max_lora_rank, "max_lora_rank")


def _check_options(options: EngineOptions, version: Version) -> None:
    for name in list_chosen(options):
        if name not in _OPTIONS:
            raise BadInput(
                f"TensorRT-LLM {version} does not support {show_option(name)} for this model.",
                why="in this version, build.py does not have an equivalent flag",
                next_step=f"omit {show_option(name)}, or use TensorRT-LLM 0.9 or later",
            )
    if (options.quantization or "none") not in ("none", "int8", "int4"):
        raise BadInput(
            f"tllm cannot plan TensorRT-LLM {version} engines with --quantization "
            f"{options.quantization}.",
            why="for versions that use build.py, tllm supports only the weight-only formats int8 "
            "and int4",
            next_step="pass --quantization int8 or int4, or use TensorRT-LLM 0.9 or later",
        )
    if options.kv_cache_dtype not in (None, "auto"):
        raise BadInput(
            f"--kv-cache-dtype {options.kv_cache_dtype} is not supported with TensorRT-LLM "
            f"{version}.",
            why="a quantized KV cache requires calibration, which tllm does not support for "
            "versions that use build.py",
            next_step="omit --kv-cache-dtype, or use TensorRT-LLM 0.9 or later",
        )
    if options.max_num_tokens and options.context_fmha is False:
        raise BadInput(
            "--max-num-tokens requires context_fmha.",
            why=f"build.py in TensorRT-LLM {version} supports the limit only with fused attention",
            next_step="omit --max-num-tokens or --build-option context_fmha=false",
        )
    if len(options.lora_dir) > 1:
        raise BadInput(
            f"TensorRT-LLM {version} supports only one folder in lora_dir.",
            why="in this version, the --hf_lora_dir flag of build.py accepts only one folder",
            next_step="pass only one folder, or use TensorRT-LLM 0.9 or later",
        )
