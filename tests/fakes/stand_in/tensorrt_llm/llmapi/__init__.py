"""The LLM API: `LLM`, the parameters of requests, and the names that engines import."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tensorrt_llm.executor.proxy import Executor
from tensorrt_llm.executor.request import RequestError
from tensorrt_llm.executor.result import IterationResult, RequestOutput
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs

__all__ = ["LLM", "GuidedDecodingParams", "LoRARequest", "RequestError", "SamplingParams"]

# All clients in the order of their creation.
CLIENTS: list[LLM] = []


@dataclass(slots=True, kw_only=True)
class GuidedDecodingParams:
    json: Any = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None


@dataclass(slots=True)
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str = ""

    def __post_init__(self) -> None:
        if not Path(self.lora_path).exists():
            raise ValueError(f"lora_path ({self.lora_path}) does not exist.")


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    bad: list[str] | None = None
    bad_token_ids: list[int] | None = None
    _bad_word_ids: list[list[int]] | None = field(default=None, init=False, repr=False)
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    beam_search_diversity_rate: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    length_penalty: float | None = None
    early_stopping: int | None = None
    min_p: float | None = None
    embedding_bias: Any = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_perf_metrics: bool = False
    guided_decoding: GuidedDecodingParams | None = None
    detokenize: bool = True

    def __post_init__(self) -> None:
        self.best_of = self.best_of or self.n
        if self.best_of < self.n:
            raise ValueError(f"best_of ({self.best_of}) cannot be less than n ({self.n})")
        is_greedy = not self.use_beam_search and self.top_k in (None, 1) and not self.top_p
        if self.best_of > 1 and is_greedy and not os.environ.get("TLLM_ALLOW_N_GREEDY_DECODING"):
            raise ValueError("Greedy decoding in the LLM API does not allow multiple returns.")

    def banned(self) -> list[list[int]]:
        words = [[token] for token in self.bad_token_ids or ()]
        return words if self.bad is None else words + (self._bad_word_ids or [])


class LLM:
    """The LLM; `arguments` and `requests` record its input.

    An unknown top-level argument is a plain `ValueError`, and an unknown nested argument is a
    Pydantic error (tensorrt_llm/llmapi/llm.py, 1.0 to 1.3).
    """

    def __init__(self, model: str, **arguments: Any) -> None:
        for name in arguments:
            if name not in TorchLlmArgs.model_fields:
                raise ValueError(f"LLM got invalid argument: {name}")
        self.args = TorchLlmArgs(model=model, **arguments)
        self.arguments = {"model": model, **arguments}
        self.requests: list[SimpleNamespace] = []
        self.is_shut_down = False
        self.executor = Executor()
        CLIENTS.append(self)

    def generate_async(
        self,
        inputs: list[int],
        sampling_params: SamplingParams | None = None,
        lora_request: LoRARequest | None = None,
        streaming: bool = False,
    ) -> RequestOutput:
        assert sampling_params is not None
        if sampling_params.end_id is None and self.arguments.get("skip_tokenizer_init"):
            raise ValueError("tokenizer is required to reset end_id")
        result = RequestOutput(inputs, sampling_params)
        self.executor.submit(result, streaming=streaming)
        self.requests.append(
            SimpleNamespace(
                inputs=inputs, params=sampling_params, lora=lora_request, streaming=streaming,
                result=result,
            )
        )  # fmt: skip
        return result

    def get_stats_async(self, timeout: float | None = 2) -> IterationResult:
        return self.executor.aget_stats(timeout)

    def shutdown(self) -> None:
        self.executor.shutdown()
        self.is_shut_down = True
