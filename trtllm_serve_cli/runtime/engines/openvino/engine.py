"""Implement an engine with OpenVINO GenAI's continuous batching.

This module requires the package `openvino-genai`.
"""

from __future__ import annotations

import resource
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

from ...engine import (
    EngineLimits,
    EngineStats,
    FinishReason,
    GenerationRequest,
    InvalidRequest,
    PerfMetrics,
    SequenceUpdate,
    last_line,
)
from ...lora.adapter import Adapter
from ..prefix_blocks import PrefixBlocks
from .admission import AdmissionQueue
from .grammar_check import CheckedGuide, GrammarCheck, structured_output
from .kv_blocks import TOKENS_PER_BLOCK, count_blocks, count_needed_blocks, count_sequences
from .loading import load_pipeline, reuses_blocks
from .request import Drafts, Guide, find_guide, make_config
from .running_request import NewTokens, RunningRequest, find_guided, find_slowest_guide
from .scoring import Scorer
from .step_guard import StepClock, StepGuard

# The maximum time that a step waits for a guide check or for prompt log probabilities while the
# pipeline has no requests, in seconds.
_IDLE_S = 0.02
_STATUS = openvino_genai.GenerationStatus
_FINISH = openvino_genai.GenerationFinishReason


@dataclass(frozen=True, slots=True)
class _Unchecked:
    """A request whose guide is being checked.

    `config` is the generation config, and `checked` is a future for the result of the check.
    """

    request: GenerationRequest
    config: Any
    checked: Future[CheckedGuide]


class OpenVinoEngine:
    """A CPU engine with continuous batching, a paged KV cache and prefix caching.

    `config` contains engine_dir, max_batch_size, max_beam_width, max_seq_len, max_num_tokens,
    max_tokens_in_paged_kv_cache, enable_kv_cache_reuse, vocab_size and the following values:

    - num_threads: the number of threads. If it is 0, `thread_properties` chooses the number.
    - num_draft_tokens: the number of draft tokens per step. If it is 0, speculative decoding is
      disabled.
    - draft_model_dir: the folder of the draft model. If it is empty, the engine copies draft tokens
      from the prompt and the tokens generated so far (prompt lookup). With a draft model, the
      engine does not reuse KV cache blocks.

    If `adapter` is set, the engine applies this LoRA adapter to all requests.
    """

    def __init__(self, config: dict[str, Any], adapter: Adapter | None = None) -> None:
        engine_dir = Path(config["engine_dir"])
        self._num_blocks = -(-int(config["max_tokens_in_paged_kv_cache"]) // TOKENS_PER_BLOCK)
        num_drafts = int(config["num_draft_tokens"])
        self._drafts = Drafts(num_drafts, not config["draft_model_dir"]) if num_drafts else None
        self._pipeline = load_pipeline(engine_dir, config, self._num_blocks, adapter)
        self._tokenizer = self._pipeline.get_tokenizer()
        self._prefix_blocks = PrefixBlocks(
            TOKENS_PER_BLOCK, self._num_blocks if reuses_blocks(config) else 0
        )
        self._queue = AdmissionQueue[tuple[GenerationRequest, Any, CheckedGuide | None]](
            int(config["max_batch_size"])
        )
        self._running: dict[int, RunningRequest] = {}
        # The ids of cancelled requests whose slots are not free yet. The pipeline keeps a cancelled
        # request until its next step.
        self._cancelled: list[int] = []
        self._grammar_check = GrammarCheck(engine_dir, int(config["vocab_size"]))
        self._checker = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._unchecked: dict[int, _Unchecked] = {}
        self._scorer = Scorer(
            engine_dir, int(config["num_threads"]), has_adapter=adapter is not None
        )
        self._step_guard = StepGuard()
        self._iteration = 0
        self._num_preemptions = self._num_blocks_reused = self._num_blocks_missed = 0
        self.limits = EngineLimits(
            max_seq_len=int(config["max_seq_len"]),
            max_beam_width=int(config["max_beam_width"]),
            vocab_size=int(config["vocab_size"]),
        )

    def submit(self, request: GenerationRequest) -> None:
        if request.return_prompt_log_probs:
            self._scorer.submit(request)
            return
        if (needed := count_needed_blocks(request)) > self._num_blocks:
            raise InvalidRequest(
                f"The request may need KV cache for {needed * TOKENS_PER_BLOCK} tokens, but the "
                f"limit is {self._num_blocks * TOKENS_PER_BLOCK} tokens "
                "(max_tokens_in_paged_kv_cache). Request fewer tokens or sequences."
            )
        if (num_sequences := count_sequences(request)) > (limit := self._queue.max_sequences):
            raise InvalidRequest(
                f"The request has {num_sequences} sequences, but the engine runs at most "
                f"{limit} sequences concurrently (max_num_seqs). Request fewer sequences."
            )
        config = make_config(request, self._tokenizer, self._drafts)
        guide = find_guide(request, self._tokenizer)
        if guide is None:
            self._queue.add(request.id, num_sequences, (request, config, None))
            return
        config.structured_output_config = structured_output(guide.type, guide.text)
        checked = self._checker.submit(self._check, guide)
        self._unchecked[request.id] = _Unchecked(request, config, checked)

    def cancel(self, request_id: int) -> None:
        self._scorer.cancel(request_id)
        if (unchecked := self._unchecked.pop(request_id, None)) is not None:
            # If the check has not started, cancel it to avoid delaying other checks.
            unchecked.checked.cancel()
        self._queue.drop(request_id)
        if (running := self._running.pop(request_id, None)) is not None:
            self._stop(running)

    def has_work(self) -> bool:
        # Also check the pipeline, because it removes cancelled requests only in its next step.
        has_requests = self._running or self._queue or self._unchecked or self._scorer.pending
        return bool(has_requests or self._pipeline.has_non_finished_requests())

    def step(self) -> list[SequenceUpdate]:
        updates = self._queue_checked() + self._admit() + self._scorer.take()
        if not self._pipeline.has_non_finished_requests():
            futures: list[Future[Any]] = [each.checked for each in self._unchecked.values()]
            wait([*futures, *self._scorer.pending.values()], _IDLE_S, FIRST_COMPLETED)
            return updates
        started_ns = time.monotonic_ns()
        is_slow = self._run_pipeline()
        self._release_cancelled()
        self._iteration += 1
        self._record_scheduled(started_ns)
        for running in list(self._running.values()):
            new = self._read(running)
            updates += new
            self._record_pause(running, has_tokens=bool(new))
            if new and (new[-1].error or all(each.finish_reason for each in new)):
                del self._running[running.request.id]
                if running.handle.get_status() == _STATUS.RUNNING:
                    self._stop(running)
                else:
                    self._queue.release(running.request.id)
        return updates + self._end_slowest_guide() if is_slow else updates

    def stats(self) -> EngineStats:
        metrics = self._pipeline.get_metrics()
        used = round(metrics.cache_usage / 100 * self._num_blocks) if self._running else 0
        waiting = max(metrics.requests - metrics.scheduled_requests, 0)
        num_queued = len(self._queue) + len(self._unchecked)
        context = [each.request for each in self._running.values() if not each.num_tokens]
        return EngineStats(
            active_requests=len(self._running) + num_queued + len(self._scorer.pending),
            scheduled_requests=min(metrics.scheduled_requests, len(self._running)),
            context_requests=max(len(context) - waiting, 0),
            waiting_requests=min(waiting, len(context)) + num_queued,
            kv_blocks_max=self._num_blocks,
            kv_blocks_used=used,
            tokens_per_block=TOKENS_PER_BLOCK,
            iteration=self._iteration,
            paused_requests=sum(each.is_paused for each in self._running.values()),
            preemptions=self._num_preemptions,
            kv_blocks_reused=self._num_blocks_reused,
            kv_blocks_missed=self._num_blocks_missed,
            context_tokens=sum(len(request.input_ids) for request in context),
            memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )

    def close(self) -> None:
        self._checker.shutdown(cancel_futures=True)
        self._scorer.close()
        self._grammar_check.close()

    def _queue_checked(self) -> list[SequenceUpdate]:
        """Queue the requests whose guides have been checked and are valid.

        Return an error update for each request whose guide is invalid or could not be checked.
        """
        updates = []
        for each in list(self._unchecked.values()):
            if not each.checked.done():
                continue
            request = each.request
            del self._unchecked[request.id]
            try:
                item = (request, each.config, each.checked.result())
                self._queue.add(request.id, count_sequences(request), item)
            except (InvalidRequest, OSError, RuntimeError) as error:
                is_invalid = isinstance(error, InvalidRequest)
                updates.append(SequenceUpdate(request.id, error=str(error), rejected=is_invalid))
        return updates

    def _admit(self) -> list[SequenceUpdate]:
        """Submit waiting requests to the pipeline while slots are free.

        Return an error update for each request that the pipeline rejects.
        """
        if not self._pipeline.has_non_finished_requests():
            self._release_cancelled()
        updates = []
        for request, config, guide in self._queue.admit():
            try:
                self._add(request, config, guide)
            except InvalidRequest as error:
                self._queue.release(request.id)
                updates.append(SequenceUpdate(request.id, error=str(error), rejected=True))
        return updates

    def _run_pipeline(self) -> bool:
        """Run one step of the pipeline.

        Return whether guides have slowed down this step and the previous one.
        """
        clock, guided = StepClock(), find_guided(self._running.values())
        compiled = [guide.compile_s for running, guide in guided if not running.num_tokens]
        self._pipeline.step()
        times = clock.stop()
        if guided:
            return self._step_guard.is_slow(times, max(compiled, default=0.0))
        self._step_guard.learn(times)
        return False

    def _end_slowest_guide(self) -> list[SequenceUpdate]:
        """End the request whose guide is most likely slowing down the steps.

        Return an error update for the request, or an empty list if no running request has a guide.
        """
        slowest = find_slowest_guide(self._running.values())
        if slowest is None:
            return []
        del self._running[slowest.request.id]
        self._stop(slowest)
        if slowest.request.guide_type:
            tensor, next_step = "guided_decoding_guide", "simplify the guide"
        else:
            tensor, next_step = "bad_words_list", "send fewer or shorter words"
        why = f"{tensor} takes too long to evaluate and delays other requests; {next_step}"
        return [SequenceUpdate(slowest.request.id, error=why, rejected=True)]

    def _stop(self, running: RunningRequest) -> None:
        running.handle.cancel()
        self._cancelled.append(running.request.id)

    def _release_cancelled(self) -> None:
        for request_id in self._cancelled:
            self._queue.release(request_id)
        self._cancelled.clear()

    def _check(self, guide: Guide) -> CheckedGuide:
        """Check a guide and return the result.

        Raise `InvalidRequest` if the guide cannot be used. Raise `OSError` or `RuntimeError` if the
        process that checks guides cannot be started.
        """
        checked = self._grammar_check.check(guide.type, guide.text)
        if checked.problem:
            raise InvalidRequest(f"{guide.tensor} {checked.problem}")
        return checked

    def _add(self, request: GenerationRequest, config: Any, guide: CheckedGuide | None) -> None:
        input_ids = openvino.Tensor(np.array([request.input_ids], dtype=np.int64))
        try:
            handle = self._pipeline.add_request(request.id, input_ids, config)
        except RuntimeError as error:
            raise InvalidRequest(last_line(error)) from error
        num_reused = self._prefix_blocks.add(request.input_ids)
        self._num_blocks_reused += num_reused
        self._num_blocks_missed += -(-len(request.input_ids) // TOKENS_PER_BLOCK) - num_reused
        self._running[request.id] = RunningRequest(request, handle, num_reused, guide)

    def _record_scheduled(self, started_ns: int) -> None:
        """Record the start time of the step in which each request was first scheduled.

        The scheduler reports how many requests are scheduled, but not which ones. It schedules
        requests in order of arrival, so the scheduled requests are the oldest ones.
        """
        num_scheduled = self._pipeline.get_metrics().scheduled_requests
        for _, running in zip(range(num_scheduled), self._running.values(), strict=False):
            running.first_scheduled_ns = running.first_scheduled_ns or started_ns

    def _read(self, running: RunningRequest) -> list[SequenceUpdate]:
        """Return the updates for one request from the last step.

        New tokens are returned after each step if the request generates a single sequence.
        Otherwise, all sequences are returned when the request ends. If the pipeline has ignored the
        request because it does not fit in the KV cache, return an error update.
        """
        status = running.handle.get_status()
        if status == _STATUS.IGNORED:
            why = (
                "the request does not fit in the KV cache (max_tokens_in_paged_kv_cache); request "
                "fewer tokens"
            )
            return [SequenceUpdate(running.request.id, error=why)]
        outputs = running.read()
        num_requested = running.request.num_return_sequences
        if not outputs and status != _STATUS.FINISHED:
            return []
        if running.request.beam_width > 1:
            best = sorted(outputs, key=lambda sequence: -outputs[sequence].output.score)[
                :num_requested
            ]
        else:
            best = sorted(outputs)[:num_requested]
        if outputs:
            running.record_tokens(sum(len(outputs[key].ids) for key in best))
        updates = [self._update(running, index, outputs[key]) for index, key in enumerate(best)]
        if status == _STATUS.FINISHED:
            # OpenVINO GenAI merges identical beams, so it may return fewer sequences than
            # requested. Any request may also end without new output. End each sequence that is
            # missing from the output with an empty update.
            missing = (
                range(len(best), num_requested)
                if running.request.beam_width > 1 or not best
                else ()
            )
            updates += [
                SequenceUpdate(running.request.id, index, finish_reason="stop") for index in missing
            ]
        return updates

    def _record_pause(self, running: RunningRequest, *, has_tokens: bool) -> None:
        """Record whether a request is preempted.

        The scheduler gives priority to started sequences. A started sequence without a new token
        has therefore lost its KV cache to other sequences. Requests with several sequences are
        skipped, because they do not return any tokens until they end.
        """
        request = running.request
        if not running.num_tokens or count_sequences(request) > 1:
            return
        if not has_tokens and not running.is_paused:
            self._num_preemptions += 1
        running.is_paused = not has_tokens

    def _perf(self, running: RunningRequest) -> PerfMetrics | None:
        request = running.request
        if not request.return_perf_metrics:
            return None
        num_sequences = count_sequences(request)
        num_tokens = running.num_tokens // num_sequences
        total = count_blocks(len(request.input_ids), num_tokens, num_sequences)
        # Each step generates one token and keeps the accepted draft tokens, so all tokens beyond
        # one per step are accepted draft tokens.
        num_drafts = self._drafts.num_tokens if self._drafts else 0
        accepted = running.num_tokens - running.num_steps if num_drafts else 0
        return PerfMetrics(
            kv_cache_alloc_total_blocks=total,
            kv_cache_alloc_new_blocks=total - running.num_reused_blocks,
            kv_cache_reused_blocks=running.num_reused_blocks,
            first_scheduled_time_ns=running.first_scheduled_ns,
            first_token_time_ns=running.first_token_ns,
            last_token_time_ns=running.last_token_ns,
            total_accepted_draft_tokens=accepted,
            total_draft_tokens=num_drafts * running.num_steps,
        )

    def _update(self, running: RunningRequest, index: int, new: NewTokens) -> SequenceUpdate:
        ids, log_probs = new.ids, new.log_probs
        request = running.request
        # Like TensorRT-LLM, remove the end token.
        if new.output.finish_reason == _FINISH.STOP and ids and ids[-1] == request.end_id:
            ids, log_probs = ids[:-1], log_probs[:-1]
        finish_reason = _finish_reason(new.output.finish_reason)
        # Also search the tokens for stop words, because OpenVINO GenAI searches only the text and
        # misses some whitespace stop words.
        if (end := running.find_stop(index, ids)) is not None:
            ids, log_probs, finish_reason = ids[:end], log_probs[:end], "stop"
        cum = running.cum_log_prob.get(index, 0.0) + sum(log_probs)
        running.cum_log_prob[index] = cum
        return SequenceUpdate(
            request.id,
            index,
            tuple(ids),
            finish_reason,
            tuple(log_probs) if request.return_log_probs else (),
            cum if request.return_log_probs else None,
            perf=self._perf(running),
        )


def _finish_reason(reason: Any) -> FinishReason | None:
    if reason == _FINISH.STOP:
        return "stop"
    return "length" if reason == _FINISH.LENGTH else None
