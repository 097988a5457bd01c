"""Plan the step that converts a Hugging Face checkpoint to a TensorRT-LLM checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from trtllm_serve_cli.build.build_step import SCRATCH, BuildStep
from trtllm_serve_cli.build.engine_options import EngineOptions, show_option
from trtllm_serve_cli.build.tensorrt.command import RequestedFlag, render_arguments, request_value
from trtllm_serve_cli.build.tensorrt.extra_flags import add_flags
from trtllm_serve_cli.build.tensorrt.families import Family
from trtllm_serve_cli.build.tensorrt.flags import CONVERTER, Flag, flags_of
from trtllm_serve_cli.build.tensorrt.toolkit import Toolkit
from trtllm_serve_cli.errors import BadInput

_QUANTIZE = "quantize.py"
# Weight-only quantization flag of Gemma's converter.
_GEMMA_WEIGHTS = "--use-weight-only-with-precision"
# Maps `--quantization` values to quantize.py's format names if the names differ.
_QFORMATS = {"none": "full_prec", "int8": "int8_wo", "int4": "int4_wo"}


@dataclass(frozen=True, slots=True)
class _Heads:
    """A converter that adds speculative-decoding heads to the model.

    `folder` is the converter's folder under `examples/`. `model_flag` is the flag for the head
    checkpoint. `length_flag` is the flag for the number of draft tokens, or empty if the converter
    has no such flag.
    """

    folder: str
    model_flag: str
    length_flag: str = ""


_HEADS = {
    "medusa": _Heads("medusa", "--medusa_model_dir", "--max_medusa_token_len"),
    "explicit_draft_tokens": _Heads("redrafter", "--drafter_model_dir"),
    "eagle": _Heads("eagle", "--eagle_model_dir", "--max_draft_len"),
}


@dataclass(frozen=True, slots=True)
class _Conversion:
    """The program that writes the TensorRT-LLM checkpoint.

    `program` is the program name that `flags_of` expects. `folder` is the script's folder under
    `examples/`. `title` is the build step's title. `formats` are the flags for the weight and
    KV-cache formats.
    """

    program: str
    folder: str
    title: str
    formats: tuple[RequestedFlag, ...]


def plan_checkpoint(
    checkpoint: Path,
    options: EngineOptions,
    toolkit: Toolkit,
    family: Family,
    dtype: str,
    estimated_bytes: int,
    variant: str | None = None,
) -> BuildStep:
    """Plan the step that converts the checkpoint and writes the result to `SCRATCH`.

    `variant` is the model's variant, or `None` if the family has no variants or the variant is not
    known. `dtype` is `options.dtype`, or the resolved type if the option is "auto". Raise
    `BadInput` if an option, a flag or the variant is not supported, or if a flag is set twice.
    """
    version = toolkit.version
    heads = _HEADS.get(options.speculative_decoding_mode or "")
    conversion = _choose_conversion(options, family, heads, version)
    requested = [
        RequestedFlag("--model_dir", (str(checkpoint),)),
        RequestedFlag("--output_dir", (SCRATCH,)),
        *_dtype(options, conversion.program, version, dtype),
        *_parallelism(options),
        *conversion.formats,
        *_calibration(options, conversion.program),
        *_speculation(options, heads, conversion.program),
    ]
    if "--workers" in flags_of(conversion.program, version):
        requested += request_value("--workers", options.workers, "workers")
    arguments: tuple[str, ...] = ()
    if conversion.program == family.converter:
        requested += _variant(family, variant, version)
        requested = [_rename_flag(family, each) for each in requested]
        arguments = family.extra_arguments
    requested = add_flags(requested, options.flags, conversion.program, version)
    arguments += render_arguments(conversion.program, version, requested)
    script = toolkit.examples_dir / conversion.folder / conversion.program.rpartition("/")[2]
    weights = options.quantization or "none"
    ranks = (f"{SCRATCH}/rank{rank}.safetensors" for rank in range(options.world_size))
    return BuildStep(
        title=conversion.title if weights == "none" else f"{conversion.title} ({weights} weights)",
        command=(toolkit.python, str(script), *arguments),
        inputs=(
            str(checkpoint),
            *((options.speculative_model or "",) if heads else ()),
            *options.flag_paths,
        ),
        outputs=(f"{SCRATCH}/config.json", *ranks),
        estimated_bytes=estimated_bytes,
    )


def _choose_conversion(
    options: EngineOptions, family: Family, heads: _Heads | None, version: Version
) -> _Conversion:
    converter = f"{heads.folder}/{CONVERTER}" if heads else family.converter
    if _suits_converter(options, family, converter, version):
        return _Conversion(
            converter,
            heads.folder if heads else family.folder,
            "Convert the checkpoint for TensorRT-LLM",
            tuple(_formats_of_converter(options, flags_of(converter, version))),
        )
    _check_calibrated_heads(options)
    _check_calibrated(options, family, version)
    return _Conversion(
        _QUANTIZE,
        "quantization",
        "Calibrate and convert the checkpoint for TensorRT-LLM",
        tuple(_formats_of_quantize(options)),
    )


def find_programs(options: EngineOptions, family: Family) -> tuple[str, ...]:
    """Return the names of the programs that can convert the family's checkpoints."""
    heads = _HEADS.get(options.speculative_decoding_mode or "")
    return (f"{heads.folder}/{CONVERTER}" if heads else family.converter, _QUANTIZE)


def find_planned_program(options: EngineOptions, family: Family, version: Version) -> str:
    """Return the name of the program that converts the checkpoint with these options.

    Raise `BadInput` if no program supports the weight and KV-cache formats.
    """
    heads = _HEADS.get(options.speculative_decoding_mode or "")
    return _choose_conversion(options, family, heads, version).program


def _suits_converter(
    options: EngineOptions, family: Family, converter: str, version: Version
) -> bool:
    """Return whether the converter supports the requested weight and KV-cache formats.

    If it does, tllm uses the converter, because quantize.py requires another package and loads the
    model on a GPU. SmoothQuant is an exception: if both programs support it, tllm uses quantize.py,
    which supports `calib_size`. Only the converter has the `smoothquant` flag, so setting this flag
    selects the converter.
    """
    flags = flags_of(converter, version)
    weights = {"none"}
    if not flags.keys().isdisjoint(("--use_weight_only", _GEMMA_WEIGHTS)):
        weights |= {"int8", "int4"}
    if converter == family.converter:
        weights.update(family.converter_quantizations)
    if "--smoothquant" in flags and "smoothquant" in options.flags:
        weights.add("int8_sq")
    caches = {None, *(("int8",) if _find_cache_flag(flags) else ())}
    if options.quantization == "fp8_rowwise" and "--fp8_kv_cache" in flags:
        caches.add("fp8")
    return (options.quantization or "none") in weights and _cache(options) in caches


def _find_cache_flag(flags: Mapping[str, Flag]) -> str | None:
    """Return the converter's int8 KV-cache flag, or `None` if the converter has no such flag.

    The flag name depends on the family and the TensorRT-LLM version.
    """
    names = ("--int8_kv_cache", "--calibrate_kv_cache")
    return next((each for each in names if each in flags), None)


def _formats_of_converter(
    options: EngineOptions, flags: Mapping[str, Flag]
) -> Iterator[RequestedFlag]:
    match options.quantization:
        case "int8" | "int4" if "--use_weight_only" not in flags:
            yield RequestedFlag(_GEMMA_WEIGHTS, (options.quantization,), "quantization")
        case "int8" | "int4" | "int4_gptq":
            yield RequestedFlag("--use_weight_only", option="quantization")
            yield RequestedFlag("--weight_only_precision", (options.quantization,), "quantization")
            if options.quantization == "int4_gptq" and "--per_group" in flags:
                yield RequestedFlag("--per_group", is_derived=True)
        case "int8_sq":
            yield RequestedFlag("--smoothquant", ("0.5",), is_derived=True)
        case "fp8_rowwise":
            yield RequestedFlag("--use_fp8_rowwise", option="quantization")
    if _cache(options) == "fp8":
        yield RequestedFlag("--fp8_kv_cache", option="kv_cache_dtype")
    if _cache(options) == "int8":
        flag = _find_cache_flag(flags)
        assert flag is not None
        yield RequestedFlag(flag, option="kv_cache_dtype")


def _formats_of_quantize(options: EngineOptions) -> Iterator[RequestedFlag]:
    weights = options.quantization or "none"
    yield RequestedFlag("--qformat", (_QFORMATS.get(weights, weights),), "quantization")
    yield from request_value("--kv_cache_dtype", _cache(options), "kv_cache_dtype")


def _cache(options: EngineOptions) -> str | None:
    return None if options.kv_cache_dtype == "auto" else options.kv_cache_dtype


def _dtype(
    options: EngineOptions, program: str, version: Version, dtype: str
) -> Iterator[RequestedFlag]:
    """Yield `--dtype`, unless the option is "auto" and the program can determine the data type."""
    resolves_auto = flags_of(program, version)["--dtype"].default == "auto"
    if options.dtype != "auto" or not resolves_auto:
        yield RequestedFlag("--dtype", (dtype,), "dtype")


def _parallelism(options: EngineOptions) -> Iterator[RequestedFlag]:
    if options.tp > 1:
        yield RequestedFlag("--tp_size", (options.tp,), "tp")
    if options.pp > 1:
        yield RequestedFlag("--pp_size", (options.pp,), "pp")
    yield from request_value("--moe_tp_size", options.moe_tp, "moe_tp")
    yield from request_value("--moe_ep_size", options.moe_ep, "moe_ep")


def _calibration(options: EngineOptions, program: str) -> Iterator[RequestedFlag]:
    is_calibrated = program == _QUANTIZE or options.quantization == "int8_sq"
    if not is_calibrated and _cache(options) is None:
        for option in ("calib_size", "calib_dataset"):
            if getattr(options, option) is not None:
                raise BadInput(
                    f"{show_option(option)} has no effect.",
                    why="the checkpoint is converted without calibration",
                    next_step="omit the option, or pass a quantization that requires calibration: "
                    "--quantization fp8, int8_sq or int4_awq",
                )
    yield from request_value("--calib_size", options.calib_size, "calib_size")
    yield from request_value("--calib_dataset", options.calib_dataset, "calib_dataset")


def _speculation(
    options: EngineOptions, heads: _Heads | None, program: str
) -> Iterator[RequestedFlag]:
    if heads and options.speculative_model:
        yield RequestedFlag(heads.model_flag, (options.speculative_model,), "speculative_model")
        length_flag = "--max_draft_len" if program == _QUANTIZE else heads.length_flag
        yield from request_value(length_flag, options.max_draft_len, "max_draft_len")


def _check_calibrated_heads(options: EngineOptions) -> None:
    if options.speculative_decoding_mode in ("explicit_draft_tokens", "eagle"):
        raise BadInput(
            f"speculative_decoding_mode {options.speculative_decoding_mode} does not support "
            f"--quantization {options.quantization or 'none'} with "
            f"--kv-cache-dtype {options.kv_cache_dtype or 'auto'}.",
            why="these formats require quantize.py, which supports only Medusa heads",
            next_step="omit --quantization and --kv-cache-dtype",
        )


def _check_calibrated(options: EngineOptions, family: Family, version: Version) -> None:
    """Raise `BadInput` if quantize.py does not support the family or the quantization.

    quantize.py supports a family only if at least one of the family's quantizations requires
    quantize.py instead of the converter.
    """
    by_converter = family.converter_quantizations
    if options.quantization in by_converter or (
        set(family.quantizations) <= {"int8", "int4", *by_converter}
    ):
        with_weights = (
            f" with --quantization {options.quantization}" if options.quantization else ""
        )
        raise BadInput(
            f"TensorRT-LLM {version} does not support --kv-cache-dtype {options.kv_cache_dtype} "
            f"for {family.architecture}{with_weights}.",
            why="neither the converter nor quantize.py supports this KV cache data type for these "
            "weights",
            next_step="omit --kv-cache-dtype",
        )


def _variant(family: Family, variant: str | None, version: Version) -> list[RequestedFlag]:
    """Return a list with the flag for the variant.

    The list is empty if the variant is not known, or if the converter in TensorRT-LLM `version`
    does not have a flag for variants. Raise `BadInput` if the flag does not accept the variant.
    """
    if variant is None or family.variants is None:
        return []
    flag = flags_of(family.converter, version).get(family.variants.flag)
    if flag is None:
        return []
    if variant not in flag.choices:
        raise BadInput(
            f"TensorRT-LLM {version} does not convert {variant} models.",
            why=f"in this version, the converter supports only {', '.join(map(str, flag.choices))}",
            next_step="use a later version of TensorRT-LLM",
        )
    return [RequestedFlag(flag.name, (variant,), is_derived=True)]


def _rename_flag(family: Family, requested: RequestedFlag) -> RequestedFlag:
    return replace(requested, flag=family.flag_names.get(requested.flag, requested.flag))
