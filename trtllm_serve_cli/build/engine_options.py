"""Define the build options for all engine kinds."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from trtllm_serve_cli.choices import (
    Count,
    DtypeOption,
    KvCacheDtypeOption,
    MaxSeqLenOption,
    MoeExpertParallelism,
    MoeTensorParallelism,
    PipelineParallelism,
    QuantizationOption,
    SpeculativeMode,
    TensorParallelism,
)
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.option_fields import Option, option_fields

# Build limits that also apply when the engine serves requests. Every engine kind supports these
# options.
LIMITS = ("max_batch_size", "max_seq_len", "max_num_tokens")
# Suffixes of flags whose values are paths.
PATH_ENDINGS = ("dir", "file", "path")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options for building an engine, from the command line or the `build` section of tllm.yaml.

    Most options have the same names as flags of `trtllm-build` or `quantize.py`. `None` selects the
    engine kind's default. Planning a build fails if the engine kind does not support an option.
    """

    tp: TensorParallelism = 1
    pp: PipelineParallelism = 1
    moe_tp: MoeTensorParallelism | None = None
    moe_ep: MoeExpertParallelism | None = None
    dtype: DtypeOption = "auto"
    quantization: QuantizationOption | None = None
    kv_cache_dtype: KvCacheDtypeOption | None = None
    max_batch_size: Annotated[
        Count | None,
        Option(
            "Maximum number of requests in a batch. Default: 64 for openvino, 256 for sim (unless "
            "the timing file sets a limit), and 256 to 1024 for pytorch, vllm and tensorrt, "
            "depending on the GPU and the model. If tllm cannot choose a limit for the GPU, "
            "tensorrt uses the trtllm-build default."
        ),
    ] = None
    max_input_len: Annotated[
        Count | None,
        Option("Maximum prompt length in tokens. Default: the TensorRT-LLM default."),
    ] = None
    max_seq_len: MaxSeqLenOption | None = None
    max_num_tokens: Annotated[
        Count | None,
        Option(
            "Maximum number of tokens per engine step. Default: 256 for openvino; the timing "
            "file's limit or 8192 for sim; depending on the GPU and the model, 2048 to 16384 for "
            "vllm and 8192 or 16384 for pytorch; for tensorrt the same as for pytorch, raised to "
            "--max-input-len and capped at the tokens of a full batch, or the trtllm-build "
            "default for unknown GPUs."
        ),
    ] = None
    opt_num_tokens: Annotated[
        Count | None,
        Option(
            "Number of tokens per engine step for which TensorRT optimizes the kernels.",
            is_on_command_line=False,
        ),
    ] = None
    max_beam_width: Annotated[
        Count | None,
        Option(
            "Maximum beam width. Default: 4 for openvino, 1 for pytorch, and the trtllm-build "
            "default for tensorrt."
        ),
    ] = None
    paged_kv_cache: Annotated[
        bool | None, Option("Store the KV cache in fixed-size blocks.", is_on_command_line=False)
    ] = None
    tokens_per_block: Annotated[
        Count | None, Option("Number of tokens in a KV cache block.", is_on_command_line=False)
    ] = None
    use_paged_context_fmha: Annotated[
        bool | None,
        Option(
            "Read the paged KV cache in the context phase. Chunked context and KV cache reuse "
            "require this option.",
            is_on_command_line=False,
        ),
    ] = None
    remove_input_padding: Annotated[
        bool | None,
        Option(
            "Pack the prompts in a batch without padding. In-flight batching requires this option.",
            is_on_command_line=False,
        ),
    ] = None
    context_fmha: Annotated[
        bool | None,
        Option("Use fused attention kernels in the context phase.", is_on_command_line=False),
    ] = None
    gemm_plugin: Annotated[
        str | None,
        Option(
            "Data type of the GEMM plugin: auto, float16, bfloat16, fp8 or nvfp4. Use `disable` to "
            "build without the plugin.",
            is_on_command_line=False,
        ),
    ] = None
    gpt_attention_plugin: Annotated[
        str | None,
        Option(
            "Data type of the attention plugin: auto, float16, bfloat16 or float32. Use `disable` "
            "to build without the plugin.",
            is_on_command_line=False,
        ),
    ] = None
    multiple_profiles: Annotated[
        bool | None,
        Option(
            (
                "Build several optimization profiles. The engine is faster, but the build takes "
                "longer."
            ),
            is_on_command_line=False,
        ),
    ] = None
    gather_context_logits: Annotated[
        bool,
        Option(
            "Build an engine that can return the prompt logits.",
            is_on_command_line=False,
        ),
    ] = False
    gather_generation_logits: Annotated[
        bool,
        Option(
            "Build an engine that can return the logits of the generated tokens.",
            is_on_command_line=False,
        ),
    ] = False
    lora_dir: Annotated[
        tuple[str, ...],
        Option("Folders of the LoRA adapters to build the engine for.", is_on_command_line=False),
    ] = ()
    lora_target_modules: Annotated[
        tuple[str, ...],
        Option(
            "Target modules of the LoRA adapters, for example attn_q.", is_on_command_line=False
        ),
    ] = ()
    max_lora_rank: Annotated[
        Count | None, Option("Maximum LoRA rank.", is_on_command_line=False)
    ] = None
    speculative_decoding_mode: Annotated[
        SpeculativeMode | None,
        Option(
            "Speculative decoding mode, which determines the source of the draft tokens.",
            is_on_command_line=False,
        ),
    ] = None
    speculative_model: Annotated[
        str | None,
        Option(
            "Checkpoint folder of the draft model, or of the Medusa, ReDrafter or EAGLE heads.",
            is_on_command_line=False,
        ),
    ] = None
    max_draft_len: Annotated[
        Count | None, Option("Maximum number of draft tokens per step.", is_on_command_line=False)
    ] = None
    calib_size: Annotated[
        Count | None,
        Option("Number of samples for quantization calibration.", is_on_command_line=False),
    ] = None
    calib_dataset: Annotated[
        str | None,
        Option(
            "Calibration data set for quantization: a Hugging Face data set name or a folder.",
            is_on_command_line=False,
        ),
    ] = None
    workers: Annotated[
        Count | None,
        Option("Number of ranks to convert and build in parallel.", is_on_command_line=False),
    ] = None
    flags: Annotated[
        Mapping[str, str],
        Option(
            (
                "Additional flags for TensorRT-LLM's build programs, keyed by flag name without "
                "leading hyphens."
            ),
            is_on_command_line=False,
        ),
    ] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        """Number of GPUs that the engine runs on."""
        return self.tp * self.pp

    @property
    def flag_paths(self) -> tuple[str, ...]:
        """The flag values that are file or folder paths."""
        return tuple(value for name, value in self.flags.items() if name.endswith(PATH_ENDINGS))


def list_chosen(options: EngineOptions) -> dict[str, object]:
    """Return the options that differ from their defaults."""
    defaults = EngineOptions()
    return {
        each.name: value
        for each in dataclasses.fields(options)
        if (value := getattr(options, each.name)) != getattr(defaults, each.name)
    }


def show_option(name: str) -> str:
    """Return the name that users enter for a build option.

    The name is the command-line option, for example "--max-batch-size". If the command line does
    not have this option, the name is the KEY in `--build-option KEY=VALUE`.
    """
    (field,) = option_fields(EngineOptions, name)
    return field.shown_as


def refuse_unsupported(options: EngineOptions, kind: str, *, supported: Collection[str]) -> None:
    """Raise `BadInput` if `options` sets an option or a flag that is not in `supported`."""
    chosen = {**list_chosen(options), **options.flags}
    chosen.pop("flags", None)
    for name in chosen:
        if name not in supported:
            shown = name if name in options.flags else show_option(name)
            raise BadInput(
                f"--engine {kind} does not support {shown}.",
                why=f"the supported options are {', '.join(map(show_option, sorted(supported)))}",
                next_step=f"omit {shown}, or choose another engine kind with --engine",
            )
