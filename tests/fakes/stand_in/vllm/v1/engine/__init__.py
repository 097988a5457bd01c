"""Requests to the engine core and its outputs."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class FinishReason(enum.IntEnum):
    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3

    def __str__(self) -> str:
        return self.name.lower()


@dataclass
class EngineCoreRequest:
    request_id: str
    prompt_token_ids: list[int] | None
    mm_features: Any
    sampling_params: Any
    pooling_params: Any
    arrival_time: float
    lora_request: Any
    cache_salt: str | None
    data_parallel_rank: int | None


class EngineCoreEventType(enum.IntEnum):
    QUEUED = 1
    SCHEDULED = 2
    PREEMPTED = 3


@dataclass
class EngineCoreEvent:
    type: int
    timestamp: float


@dataclass
class PrefillStats:
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0


@dataclass
class LogprobsLists:
    logprob_token_ids: np.ndarray[Any, Any]
    logprobs: np.ndarray[Any, Any]


@dataclass
class EngineCoreOutput:
    request_id: str
    new_token_ids: list[int]
    new_logprobs: LogprobsLists | None = None
    # vLLM sends tensors, which have the method `tolist`, too.
    new_prompt_logprobs_tensors: LogprobsLists | None = None
    finish_reason: FinishReason | None = None
    events: list[EngineCoreEvent] | None = None
    prefill_stats: PrefillStats | None = None


@dataclass
class PrefixCacheStats:
    queries: int = 0
    hits: int = 0


@dataclass
class SchedulerStats:
    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_skipped_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0
    prefix_cache_stats: PrefixCacheStats = field(default_factory=PrefixCacheStats)


@dataclass
class EngineCoreOutputs:
    outputs: list[EngineCoreOutput] = field(default_factory=list)
    scheduler_stats: SchedulerStats | None = None
    timestamp: float = 0.0
