"""Implement an engine with TensorRT-LLM's LLM API and its PyTorch backend.

This module requires the package `tensorrt_llm`, version 1.0 to 1.3. TensorRT-LLM batches requests
in separate processes. An event loop in a separate thread receives the responses to all requests.
`step` returns the updates that have arrived since the previous step.
"""

from __future__ import annotations

import asyncio
import os
import queue
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tensorrt_llm.llmapi import GuidedDecodingParams, LoRARequest, RequestError, SamplingParams

from ...engine import (
    EngineLimits,
    EngineStats,
    GenerationRequest,
    InvalidRequest,
    SequenceUpdate,
    last_line,
)
from ...guide import guide_arguments
from ...lora.adapter_folders import AdapterReader
from ...lora.adapter_request import check_no_adapter, key_of
from ..engine_arguments import Arguments
from .event_loop import EventLoopThread
from .loading import load_llm
from .results import ResultReader
from .sampling import check_servable, long_bad_words, sampling_arguments
from .statistics import IterationStatistics

# The maximum time that a step waits for tokens, in seconds. It is short because new requests are
# submitted only between steps.
_STEP_WAIT_S = 0.01


@dataclass(slots=True, eq=False)
class _Running:
    request: GenerationRequest
    params: Any
    task: asyncio.Task[None] | None = None


@dataclass(frozen=True, slots=True)
class _Arrival:
    """Updates for a request. If `is_last` is set, the request has ended."""

    running: _Running
    updates: list[SequenceUpdate]
    is_last: bool = False


class PyTorchEngine:
    """A GPU engine with in-flight batching, implemented with TensorRT-LLM's `LLM` class.

    `config` contains llm (the arguments for `LLM`), max_seq_len and vocab_size. It may contain any
    field of `LoraOptions`.

    Only the caller's thread uses `_running`. Only the event loop thread uses `_tasks` and `_batch`
    and calls the TensorRT-LLM functions that handle requests.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._arguments: Arguments = config["llm"]
        self._adapters = (
            AdapterReader(Path(self._arguments["model"]), config)
            if "lora_config" in self._arguments
            else None
        )
        # By default, the LLM API rejects greedy requests for several sequences. Accept these
        # requests, as NVIDIA's backend does.
        os.environ.setdefault("TLLM_ALLOW_N_GREEDY_DECODING", "1")
        self._llm, self._sampler = load_llm(self._arguments)
        self._statistics = IterationStatistics(self._llm)
        self._running: dict[int, _Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._batch: list[_Arrival] = []
        # Each item contains all arrivals from one iteration of the event loop, or the error that
        # stopped the engine.
        self._batches: queue.SimpleQueue[list[_Arrival] | Exception] = queue.SimpleQueue()
        self.limits = EngineLimits(
            max_seq_len=int(config["max_seq_len"]),
            max_beam_width=int(self._arguments.get("max_beam_width") or 1),
            vocab_size=int(config["vocab_size"]),
        )
        self._events = EventLoopThread("llm-api")

    def submit(self, request: GenerationRequest) -> None:
        check_servable(request, self._arguments, self._sampler)
        if self._adapters is None:
            check_no_adapter(request, "--build-option lora_target_modules=MODULES")
        running = _Running(request, _sampling_params(request, self.limits.vocab_size))
        self._running[request.id] = running
        self._events.call(self._start, running)

    def cancel(self, request_id: int) -> None:
        running = self._running.pop(request_id, None)
        if running is not None:
            self._events.call(self._stop, running)

    def has_work(self) -> bool:
        return bool(self._running)

    def step(self) -> list[SequenceUpdate]:
        updates: list[SequenceUpdate] = []
        wait_s = _STEP_WAIT_S
        while True:
            try:
                batch = self._batches.get(timeout=wait_s)
            except queue.Empty:
                return updates
            if isinstance(batch, Exception):
                self._batches.put(batch)  # all later steps must also fail
                raise batch
            for arrival in batch:
                updates += self._take(arrival)
            wait_s = 0

    def stats(self) -> EngineStats:
        return self._statistics.engine_stats(len(self._running))

    def close(self) -> None:
        # Cancel the requests first, because TensorRT-LLM cannot abort them after its shutdown. Keep
        # the event loop running until the shutdown is complete, because the loop delivers the last
        # responses.
        self._events.cancel_tasks()
        try:
            self._llm.shutdown()
        finally:
            self._events.close()
            if self._adapters is not None:
                self._adapters.close()

    def _take(self, arrival: _Arrival) -> list[SequenceUpdate]:
        """Return the updates in `arrival`, or an empty list if the request was cancelled."""
        request_id = arrival.running.request.id
        if self._running.get(request_id) is not arrival.running:
            return []
        if arrival.is_last:
            del self._running[request_id]
        return arrival.updates

    # All methods below run in the event loop thread.

    def _start(self, running: _Running) -> None:
        running.task = self._events.loop.create_task(self._run(running))
        self._tasks.add(running.task)
        running.task.add_done_callback(self._tasks.discard)

    def _stop(self, running: _Running) -> None:
        assert running.task is not None
        running.task.cancel()

    async def _run(self, running: _Running) -> None:
        try:
            await self._follow(running)
        except (InvalidRequest, RequestError, ValueError) as error:
            rejected = isinstance(error, InvalidRequest)
            update = SequenceUpdate(running.request.id, error=last_line(error), rejected=rejected)
            self._deliver(_Arrival(running, [update]))
        except Exception as error:
            # Any other error means that the executor has failed, so all requests must fail.
            self._batches.put(error)
            return
        finally:
            if self._adapters is not None:
                self._adapters.release(running.request)
        self._deliver(_Arrival(running, [], is_last=True))

    async def _follow(self, running: _Running) -> None:
        request = running.request
        lora_request = await self._lora_request(request)
        result = self._llm.generate_async(
            list(request.input_ids),
            running.params,
            lora_request=lora_request,
            # Beams cannot be streamed, because their tokens may change until the request ends.
            streaming=request.beam_width == 1,
        )
        self._statistics.follow(lambda: bool(self._tasks))
        reader = ResultReader(request)
        try:
            async for _ in result:
                if updates := reader.read(result):
                    self._deliver(_Arrival(running, updates))
                if reader.is_done:
                    break
        finally:
            if not result.finished:
                result.abort()

    async def _lora_request(self, request: GenerationRequest) -> Any:
        if self._adapters is None or key_of(request) is None:
            return None
        adapter = await asyncio.wrap_future(self._adapters.find(request))
        return adapter and LoRARequest(adapter.name, adapter.number, str(adapter.folder))

    def _deliver(self, arrival: _Arrival) -> None:
        """Add an arrival to the batch.

        The batch is delivered after the other tasks in this event loop iteration have run.
        """
        if not self._batch:
            self._events.loop.call_soon(self._flush)
        self._batch.append(arrival)

    def _flush(self) -> None:
        batch, self._batch = self._batch, []
        self._batches.put(batch)


def _sampling_params(request: GenerationRequest, vocab_size: int) -> Any:
    arguments = sampling_arguments(request)
    if guide := guide_arguments(request.guide_type, request.guide):
        arguments["guided_decoding"] = GuidedDecodingParams(**guide)
    if request.logit_bias:
        arguments["embedding_bias"] = _bias_tensor(request, vocab_size)
    params = SamplingParams(**arguments)
    if words := long_bad_words(request):
        # Set the token ids directly; otherwise, the API would tokenize the texts in `bad`. Also set
        # `bad`, because the API ignores the token ids if `bad` is empty.
        params.bad = [""] * len(words)
        params._bad_word_ids = words
    return params


def _bias_tensor(request: GenerationRequest, vocab_size: int) -> Any:
    # Import PyTorch here, because only logit biases need it. The import is fast, because
    # TensorRT-LLM has already loaded PyTorch.
    import torch

    bias = np.zeros(vocab_size, dtype=np.float32)
    for token, value in request.logit_bias:
        bias[token] += value
    return torch.from_numpy(bias)
