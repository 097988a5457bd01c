"""Engine arguments, and the configuration that they create."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from vllm.config import StructuredOutputsConfig


class ValidationError(ValueError):
    """A fake of Pydantic's error."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__("1 validation error\n    For further information visit https://…")
        self._problem = {"loc": (name,), "msg": why}

    def errors(self) -> list[dict[str, Any]]:
        return [self._problem]


@dataclass
class EngineArgs:
    model: str = "m"
    tokenizer: str | None = None
    dtype: str = "auto"
    load_format: str = "auto"
    max_model_len: int = 1024
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 64
    gpu_memory_utilization: float = 0.9
    kv_cache_memory_bytes: int | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    enable_lora: bool = False
    max_loras: int = 1
    max_lora_rank: int = 16
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    structured_outputs_config: StructuredOutputsConfig = field(
        default_factory=StructuredOutputsConfig
    )

    def create_engine_config(self) -> SimpleNamespace:
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValidationError("gpu_memory_utilization", "Input should be at most 1")
        assert isinstance(self.structured_outputs_config, StructuredOutputsConfig)
        return SimpleNamespace(
            arguments=self,
            model_config=SimpleNamespace(max_model_len=self.max_model_len, model=self.model),
            cache_config=SimpleNamespace(num_gpu_blocks=None, block_size=None),
            speculative_config=None,
            structured_outputs_config=self.structured_outputs_config,
        )
