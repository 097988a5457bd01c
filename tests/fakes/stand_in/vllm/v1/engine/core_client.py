"""The engine core, which counts up one token per sequence in each step."""

from __future__ import annotations

import queue
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from vllm.v1.engine import (
    EngineCoreEvent,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    LogprobsLists,
    PrefillStats,
    PrefixCacheStats,
    SchedulerStats,
)

# Commands in the prompt's first token.
FAIL_THE_REQUEST = 991
FAIL_THE_CORE = 992
NEVER_ANSWER = 993
DIE_SILENTLY = 994

# All clients in the order of their creation.
CLIENTS: list[SyncMPClient] = []
_SCHEDULED = 2
_STEP_S = 0.002


class EngineDeadError(Exception):
    pass


class EngineCoreClient:
    @staticmethod
    def make_client(
        *,
        multiprocess_mode: bool,
        asyncio_mode: bool,
        vllm_config: Any,
        executor_class: Any,
        log_stats: bool,
    ) -> SyncMPClient:
        assert multiprocess_mode and not asyncio_mode and log_stats
        return SyncMPClient(vllm_config)


class SyncMPClient:
    def __init__(self, config: Any) -> None:
        config.cache_config.num_gpu_blocks, config.cache_config.block_size = 100, 4
        self.config = config
        self.outputs_queue: queue.Queue[EngineCoreOutputs | Exception] = queue.Queue()
        self.resources = SimpleNamespace(engine_dead=False)
        self.requests: list[EngineCoreRequest] = []
        self.aborted: list[str] = []
        self.adapters: list[str] = []
        self.is_shut_down = False
        self._running: dict[str, tuple[EngineCoreRequest, list[int]]] = {}
        self._lock = threading.Lock()
        CLIENTS.append(self)
        threading.Thread(target=self._run, daemon=True).start()

    def add_request(self, request: EngineCoreRequest) -> None:
        self.ensure_alive()
        with self._lock:
            self.requests.append(request)
            self._running[request.request_id] = (request, [])

    def abort_requests(self, names: list[str]) -> None:
        with self._lock:
            self.aborted += names
            for name in names:
                self._running.pop(name, None)

    def add_lora(self, request: Any) -> bool:
        if not (Path(request.lora_path) / "adapter_config.json").exists():
            raise Exception("Call to add_lora method failed: no adapter there")
        self.adapters.append(request.lora_name)
        return True

    def ensure_alive(self) -> None:
        if self.resources.engine_dead:
            raise EngineDeadError("EngineCore encountered an issue.")

    def shutdown(self) -> None:
        self.is_shut_down = True

    def _run(self) -> None:
        while not self.is_shut_down:
            time.sleep(_STEP_S)
            with self._lock:
                running = list(self._running.values())
                outputs = [each for one in running for each in self._advance(*one)]
            if outputs:
                now_s = time.monotonic()
                # Two of three blocks of each prompt are cached.
                started = sum(each.prefill_stats is not None for each in outputs)
                found = PrefixCacheStats(queries=12 * started, hits=8 * started)
                stats = SchedulerStats(len(running), 1, 1, len(running) / 100, found)
                self.outputs_queue.put(EngineCoreOutputs(outputs, stats, now_s))

    def _advance(self, request: EngineCoreRequest, made: list[int]) -> list[EngineCoreOutput]:
        name, params = request.request_id, request.sampling_params
        assert request.prompt_token_ids
        match request.prompt_token_ids[0]:
            case 991:
                del self._running[name]
                return [EngineCoreOutput(name, [], finish_reason=FinishReason.ERROR)]
            case 992:
                self.outputs_queue.put(EngineDeadError("the core has failed"))
                return []
            case 993:
                return []
            case 994:
                self.resources.engine_dead = True
                return []
        is_first = not made
        made.append(self._next_token(request, made))
        output = EngineCoreOutput(name, made[-1:])
        if params.logprobs is not None:
            # vLLM fills all rows of a batch to the largest number of alternatives.
            output.new_logprobs = _rows(made[-1:], params.logprobs + 1)
        if is_first:
            output.events = [EngineCoreEvent(1, 1.0), EngineCoreEvent(_SCHEDULED, 2.0)]
            num_cached = 0 if params.skip_reading_prefix_cache else 4
            output.prefill_stats = PrefillStats(len(request.prompt_token_ids), num_cached)
            if params.prompt_logprobs is not None:
                output.new_prompt_logprobs_tensors = _rows(
                    request.prompt_token_ids[1:], params.prompt_logprobs
                )
        if len(made) > params.min_tokens and made[-1] in params.stop_token_ids:
            output.finish_reason = FinishReason.STOP
        elif len(made) == params.max_tokens:
            output.finish_reason = FinishReason.LENGTH
        if output.finish_reason is not None:
            del self._running[name]
        return [output]

    def _next_token(self, request: EngineCoreRequest, made: list[int]) -> int:
        assert request.prompt_token_ids
        for token, bias in (request.sampling_params.logit_bias or {}).items():
            if bias > 0:
                return token
        token = (made or request.prompt_token_ids)[-1] + 1
        banned = request.sampling_params._bad_words_token_ids or []
        while any([*made, token][-len(word) :] == word for word in banned):
            token += 1
        return token


def _rows(token_ids: list[int], count: int) -> LogprobsLists:
    """Return a row per token: the token, followed by `count` tokens from 100 on."""
    rows = [[token, *range(100, 100 + count)] for token in token_ids]
    values = [[-0.5, *(-1.0 - each for each in range(count))] for _ in token_ids]
    return LogprobsLists(
        np.array(rows, dtype=np.int32).reshape(-1, count + 1),
        np.array(values, dtype=np.float32).reshape(-1, count + 1),
    )
