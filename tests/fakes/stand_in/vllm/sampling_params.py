"""Sampling parameters, with checks that vLLM makes, too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class StructuredOutputsParams:
    json: Any = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None


@dataclass(kw_only=True)
class SamplingParams:
    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: list[int] = field(default_factory=list)
    max_tokens: int | None = 16
    min_tokens: int = 0
    min_p: float = 0.0
    logit_bias: dict[int, float] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    ignore_eos: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    skip_reading_prefix_cache: bool = field(default=False, init=False)
    _bad_words_token_ids: list[list[int]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}.")

        self.skip_reading_prefix_cache = self.prompt_logprobs is not None

    def verify(
        self, model_config: Any, speculative_config: Any, guided_config: Any, tokenizer: Any
    ) -> None:
        if self.structured_outputs is not None and tokenizer is None:
            raise ValueError("Structured outputs requires a tokenizer")
        if self.structured_outputs is not None and self.structured_outputs.regex == "(":
            raise ValueError("Invalid regex.\nmissing )")
