"""What a user asks an engine to be, whatever engine kind it becomes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass

from trtllm_serve_cli.choices import (
    Count,
    Dtype,
    KvCacheDtype,
    Quantization,
    SequenceLength,
    SpeculativeMode,
)
from trtllm_serve_cli.errors import BadInput

# What limits how an engine is served, too; any engine kind takes them.
LIMITS = ("max_batch_size", "max_seq_len", "max_num_tokens")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """None leaves an option to the engine kind; what a kind cannot do, its plan refuses.

    Names are upstream's: those of `trtllm-build` and of the LLM API. `tp`, `pp`, `moe_tp` and
    `moe_ep` are numbers of GPUs, `max_*_len` and `max_num_tokens` are tokens. `quantization` "int8"
    and "int4" are of the weights only; "int8_sq" is SmoothQuant. `use_paged_context_fmha` is what
    chunked context and the reuse of KV-cache blocks need of a TensorRT engine. `speculative_model`
    is a checkpoint's folder: the heads of Medusa, ReDrafter and EAGLE, or a draft model.
    """

    tp: Count = 1
    pp: Count = 1
    moe_tp: Count | None = None
    moe_ep: Count | None = None
    dtype: Dtype = "auto"
    quantization: Quantization | None = None
    kv_cache_dtype: KvCacheDtype | None = None
    max_batch_size: Count | None = None
    max_input_len: Count | None = None
    max_seq_len: SequenceLength | None = None
    max_num_tokens: Count | None = None
    opt_num_tokens: Count | None = None
    max_beam_width: Count | None = None
    paged_kv_cache: bool | None = None
    tokens_per_block: Count | None = None
    use_paged_context_fmha: bool | None = None
    remove_input_padding: bool | None = None
    context_fmha: bool | None = None
    gemm_plugin: str | None = None
    gpt_attention_plugin: str | None = None
    multiple_profiles: bool | None = None
    gather_context_logits: bool = False
    gather_generation_logits: bool = False
    lora_dir: tuple[str, ...] = ()
    lora_target_modules: tuple[str, ...] = ()
    max_lora_rank: Count | None = None
    speculative_decoding_mode: SpeculativeMode | None = None
    speculative_model: str | None = None
    max_draft_len: Count | None = None
    calib_size: Count | None = None
    calib_dataset: str | None = None
    workers: Count | None = None

    @property
    def world_size(self) -> int:
        """The number of GPUs."""
        return self.tp * self.pp


def list_chosen(options: EngineOptions) -> dict[str, object]:
    """The options that are not as they would be anyway."""
    return {
        each.name: value
        for each in dataclasses.fields(options)
        if (value := getattr(options, each.name)) != each.default
    }


def refuse_unsupported(options: EngineOptions, kind: str, *, supported: Collection[str]) -> None:
    """Raise `BadInput` for an option that is chosen and that the engine kind does not support."""
    for name, value in list_chosen(options).items():
        if name not in supported:
            raise BadInput(
                f"The engine kind {kind} has no option {name}.",
                why=f"it supports {', '.join(sorted(supported))}",
                next_step=f"leave {name} {value} out, or choose another engine kind",
            )
