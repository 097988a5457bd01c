"""Declare the serving options for `tllm plan`."""

from __future__ import annotations

from dataclasses import dataclass, fields
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
    TensorParallelism,
)
from trtllm_serve_cli.option_fields import Option, Within


@dataclass(frozen=True, slots=True)
class SizeOptions:
    """The serving options for a plan.

    If both `tp` and `pp` are None, `tllm plan` compares several values for them. If only one is
    None, it defaults to 1. The defaults of the other options may depend on the model and on each
    other.
    """

    tp: TensorParallelism | None = None
    pp: PipelineParallelism | None = None
    moe_tp: MoeTensorParallelism | None = None
    moe_ep: MoeExpertParallelism | None = None
    dtype: DtypeOption = "auto"
    quantization: QuantizationOption | None = None
    kv_cache_dtype: KvCacheDtypeOption | None = None
    max_batch_size: Annotated[
        Count | None,
        Option("Maximum number of sequences in a batch. Default: 2048, or 64 on a CPU."),
    ] = None
    max_num_tokens: Annotated[
        Count | None,
        Option("Maximum number of tokens per engine step. Default: 8192, or 256 on a CPU."),
    ] = None
    max_seq_len: MaxSeqLenOption | None = None
    input_len: Annotated[
        Count | None,
        Option(
            "Prompt length in tokens. Default: --max-seq-len minus --output-len. Without "
            "--max-seq-len, the default is 1024, or the model's maximum sequence length minus "
            "--output-len if this difference is smaller."
        ),
    ] = None
    output_len: Annotated[
        Count | None,
        Option(
            "Response length in tokens. Default: the smallest of 256, half of the maximum "
            "sequence length, and the maximum sequence length minus --input-len."
        ),
    ] = None
    kv_cache_free_gpu_mem_fraction: Annotated[
        float,
        Within(0.01, 1.0),
        Option(
            "KV cache size, as a fraction of the GPU memory that weights and activations leave "
            "free.",
            metavar="F",
        ),
    ] = 0.9

    @property
    def requires_gpu(self) -> bool:
        """True if an option is set that does not apply to CPUs."""
        for_cpus = {"max_batch_size", "max_num_tokens", "max_seq_len", "quantization"}
        return any(
            getattr(self, field.name) != field.default
            for field in fields(self)
            if field.name not in for_cpus
        )
