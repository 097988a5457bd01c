"""Implement an engine with vLLM.

This module requires the package `vllm` and is written for version 0.26. vLLM batches requests in
separate processes. Like vLLM's own interfaces, this module uses `EngineCoreClient` to communicate
with vLLM's engine core. The engine core sends one message per step, which contains the new token
ids of all sequences. The engine returns these token ids without decoding them to text.
"""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import time
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vllm.config import StructuredOutputsConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.engine import EngineCoreEventType, EngineCoreRequest
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.executor.abstract import Executor

from ...engine import (
    EngineLimits,
    EngineStats,
    GenerationRequest,
    InvalidRequest,
    SequenceUpdate,
    last_line,
)
from ...guide import guide_arguments
from ...lora.adapter_folders import AdapterReader, KnownAdapter
from ...lora.adapter_request import check_no_adapter, key_of
from ..engine_arguments import Arguments, explaining_rejections
from .outputs import SequenceReader
from .sampling import check_servable, sampling_arguments, seed_of

# The maximum time that a step waits for tokens, in seconds. It is short because new requests are
# submitted only between steps.
_STEP_WAIT_S = 0.002


@dataclass(slots=True)
class _Running:
    request: GenerationRequest
    params: list[SamplingParams]
    # Maps request ids in the engine core to readers. The engine core has one request per sequence.
    readers: dict[str, SequenceReader] = field(default_factory=dict)


class VllmEngine:
    """A GPU engine that uses vLLM for in-flight batching.

    `config` contains llm (vLLM's engine arguments), max_seq_len and vocab_size. It may also contain
    any field of `LoraOptions`.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        arguments: Arguments = config["llm"]
        self._adapters = (
            AdapterReader(Path(arguments["model"]), config)
            if arguments.get("enable_lora")
            else None
        )
        self._config = _configure(arguments)
        self._core = EngineCoreClient.make_client(
            multiprocess_mode=True,
            asyncio_mode=False,
            vllm_config=self._config,
            executor_class=Executor.get_class(self._config),
            log_stats=True,
        )
        self._running: dict[int, _Running] = {}
        # Maps the id of each request that is waiting for an adapter to the adapter's future. These
        # requests are also in `_running`.
        self._waiting: dict[int, Future[KnownAdapter | None]] = {}
        self._readers: dict[str, SequenceReader] = {}
        self._updates: list[SequenceUpdate] = []
        # The latest scheduler statistics from the engine core.
        self._scheduler: Any = None
        self._num_steps = self._num_preemptions = self._num_cached = self._num_uncached = 0
        self._num_context_tokens = 0
        self.limits = EngineLimits(
            # Use vLLM's limit if it is lower than the configured length.
            max_seq_len=min(int(config["max_seq_len"]), self._config.model_config.max_model_len),
            max_beam_width=1,
            vocab_size=int(config["vocab_size"]),
        )
        # Exclude all existing objects from garbage collection, because scanning these permanent
        # objects in each collection would delay tokens.
        gc.collect()
        gc.freeze()

    def submit(self, request: GenerationRequest) -> None:
        check_servable(request)
        if self._adapters is None:
            check_no_adapter(request, "--build-option max_lora_rank=RANK")
        if request.guide_type is not None and request.end_id is None:
            # After the guide's last token, vLLM allows only the end token. The sequence ends there
            # only if the request has an end token.
            request = replace(request, end_id=self._tokenizer.eos_token_id)
        running = _Running(request, self._sampling_params(request))
        self._running[request.id] = running
        if self._adapters is not None and key_of(request) is not None:
            self._waiting[request.id] = self._adapters.find(request)
            return
        try:
            self._start(running, None)
        except Exception:
            self.cancel(request.id)
            raise

    def cancel(self, request_id: int) -> None:
        if request_id in self._running:
            self._abort(self._forget(request_id))
            self._updates = [each for each in self._updates if each.request_id != request_id]

    def has_work(self) -> bool:
        # If the engine core has died, return true, because only `step` raises the error.
        return bool(self._running or self._updates or self._core.resources.engine_dead)

    def step(self) -> list[SequenceUpdate]:
        self._start_waiting()
        if not self._updates:
            with contextlib.suppress(queue.Empty):
                self._read(self._next_outputs(_STEP_WAIT_S))
                # Read all other outputs that have arrived.
                while True:
                    self._read(self._next_outputs(0))
        updates, self._updates = self._updates, []
        return updates

    def stats(self) -> EngineStats:
        cache = self._config.cache_config
        num_blocks = cache.num_gpu_blocks or 0
        # If no request is running, ignore the latest statistics, because they are stale.
        latest = self._scheduler if self._running else None
        waiting = latest.num_waiting_reqs + latest.num_skipped_waiting_reqs if latest else 0
        unread = sum(not each.has_begun for each in self._readers.values())
        return EngineStats(
            active_requests=len(self._running),
            scheduled_requests=latest.num_running_reqs if latest else 0,
            context_requests=max(unread - waiting, 0),
            waiting_requests=waiting,
            kv_blocks_max=num_blocks,
            kv_blocks_used=round(latest.kv_cache_usage * num_blocks) if latest else 0,
            tokens_per_block=cache.block_size or 0,
            iteration=self._num_steps,
            context_tokens=self._num_context_tokens if latest else 0,
            preemptions=self._num_preemptions,
            # vLLM counts cached tokens, so convert tokens to blocks.
            kv_blocks_reused=self._num_cached // (cache.block_size or 1),
            kv_blocks_missed=self._num_uncached // (cache.block_size or 1),
        )

    def close(self) -> None:
        self._core.shutdown()
        if self._adapters is not None:
            self._adapters.close()

    @cached_property
    def _tokenizer(self) -> Any:
        """The tokenizer. Only guides need it, because prompts and responses are token ids."""
        return cached_tokenizer_from_config(self._config.model_config)

    def _sampling_params(self, request: GenerationRequest) -> list[SamplingParams]:
        """Return the sampling parameters for each sequence.

        Raise `InvalidRequest` if vLLM rejects the parameters.
        """
        arguments = sampling_arguments(request)
        asks_prompt = request.return_prompt_log_probs
        seeds = [seed_of(request, index) for index in range(request.num_return_sequences)]
        try:
            if guide := guide_arguments(request.guide_type, request.guide):
                arguments["structured_outputs"] = StructuredOutputsParams(**guide)
            # Request the prompt log probabilities only once, because all sequences have the same
            # prompt. Pass the argument to the `SamplingParams` constructor, because the constructor
            # also excludes the prompt from KV cache reuse.
            first = {"prompt_logprobs": request.num_top_log_probs if asks_prompt else None}
            all_params = [
                SamplingParams(**arguments, seed=seed, **(first if index == 0 else {}))
                for index, seed in enumerate(seeds)
            ]
            all_params[0].verify(
                self._config.model_config,
                self._config.speculative_config,
                self._config.structured_outputs_config,
                self._tokenizer if guide else None,
            )
        except ValueError as error:
            raise InvalidRequest(f"vLLM rejected the request: {last_line(error)}") from error
        for params in all_params:
            if request.bad_words:
                # Set the token ids directly, because vLLM would derive the ids from text and the
                # request contains only token ids.
                params._bad_words_token_ids = [list(word) for word in request.bad_words]
        return all_params

    def _start_waiting(self) -> None:
        """Start the requests whose adapters have been read.

        Fail the requests whose adapters cannot be read or loaded.
        """
        for request_id in [each for each, found in self._waiting.items() if found.done()]:
            try:
                adapter = self._waiting.pop(request_id).result()
                lora = adapter and LoRARequest(adapter.name, adapter.number, str(adapter.folder))
                # Load the adapter now, so that an error fails only this request. If the engine core
                # loaded the adapter in a step, an error would stop the engine.
                if lora is not None:
                    self._core.add_lora(lora)
            except Exception as error:
                self._forget(request_id)
                rejected = isinstance(error, InvalidRequest)
                self._updates.append(
                    SequenceUpdate(request_id, error=last_line(error), rejected=rejected)
                )
                continue
            self._start(self._running[request_id], lora)

    def _start(self, running: _Running, lora: LoRARequest | None) -> None:
        request = running.request
        for index, params in enumerate(running.params):
            name = f"{request.id}-{index}"
            reader = SequenceReader(request, index, self._config.cache_config.block_size)
            running.readers[name] = self._readers[name] = reader
            self._core.add_request(
                EngineCoreRequest(
                    request_id=name,
                    prompt_token_ids=list(request.input_ids),
                    mm_features=None,
                    sampling_params=params,
                    pooling_params=None,
                    arrival_time=time.time(),
                    lora_request=lora,
                    cache_salt=None,
                    data_parallel_rank=None,
                )
            )

    def _next_outputs(self, timeout_s: float) -> Any:
        """Return the outputs of the next step.

        Raise `queue.Empty` if no outputs arrive within `timeout_s` seconds. If the engine core has
        failed, raise its error.
        """
        try:
            outputs = self._core.outputs_queue.get(block=timeout_s > 0, timeout=timeout_s or None)
        except queue.Empty:
            self._core.ensure_alive()
            raise
        if isinstance(outputs, Exception):
            raise outputs
        return outputs

    def _read(self, outputs: Any) -> None:
        if outputs.scheduler_stats is not None:
            self._scheduler = outputs.scheduler_stats
            self._num_steps += 1
            found = outputs.scheduler_stats.prefix_cache_stats
            self._num_cached += found.hits
            self._num_uncached += found.queries - found.hits
        self._num_context_tokens = 0
        for output in outputs.outputs:
            self._num_preemptions += sum(
                event.type == EngineCoreEventType.PREEMPTED for event in output.events or ()
            )
            if output.prefill_stats is not None:
                self._num_context_tokens += output.prefill_stats.num_computed_tokens
            # Ignore outputs of sequences without a reader, which were cancelled or have ended.
            if (reader := self._readers.get(output.request_id)) is None:
                continue
            if (update := reader.read(output, outputs.timestamp)) is not None:
                self._updates.append(update)
            if reader.is_done:
                self._end(output, reader.request.id, failed=bool(update and update.error))

    def _end(self, output: Any, request_id: int, *, failed: bool) -> None:
        """Remove a sequence that has ended.

        If the sequence failed or was the last one of its request, also remove the request.
        """
        running = self._running[request_id]
        del self._readers[output.request_id], running.readers[output.request_id]
        if output.finish_reason is None:
            self._core.abort_requests([output.request_id])
        if failed or not running.readers:
            self._abort(self._forget(request_id))

    def _forget(self, request_id: int) -> _Running:
        running = self._running.pop(request_id)
        self._waiting.pop(request_id, None)
        if self._adapters is not None:
            self._adapters.release(running.request)
        return running

    def _abort(self, running: _Running) -> None:
        if running.readers:
            self._core.abort_requests(list(running.readers))
        for name in running.readers:
            del self._readers[name]


def _configure(arguments: Arguments) -> Any:
    """Return the `VllmConfig` for vLLM's engine arguments.

    If vLLM does not support an argument or rejects its value, raise a `ValueError` that names the
    argument.
    """
    # Disable vLLM's usage reports, because a server must not send data to third parties.
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    unknown = sorted(set(arguments) - set(EngineArgs.__dataclass_fields__))
    if unknown:
        raise ValueError(
            f"vLLM does not support the engine arguments {', '.join(unknown)}; remove them from "
            "vllm_args"
        )
    arguments = deepcopy(arguments)
    with explaining_rejections("vLLM"):
        # Convert only this argument group, because `EngineArgs` accepts all other groups as dicts.
        if guided := arguments.get("structured_outputs_config"):
            arguments["structured_outputs_config"] = StructuredOutputsConfig(**guided)
        return EngineArgs(**arguments).create_engine_config()
