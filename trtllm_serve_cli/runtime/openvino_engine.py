"""OpenVINO GenAI's continuous batching as an engine. Needs the package `openvino-genai`."""

from __future__ import annotations

import json
import resource
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

from .engine import (
    EngineLimits,
    EngineStats,
    FinishReason,
    GenerationRequest,
    InvalidRequest,
    SequenceUpdate,
    last_line,
)
from .words import leave_out_longer

# Fixed by OpenVINO's paged attention on a CPU (its plugin's KV cache block size).
TOKENS_PER_BLOCK = 32
_STATUS = openvino_genai.GenerationStatus
_FINISH = openvino_genai.GenerationFinishReason


@dataclass(slots=True)
class _Running:
    request: GenerationRequest
    handle: Any
    cum_log_prob: dict[int, float] = field(default_factory=dict)
    has_tokens: bool = False


class OpenVinoEngine:
    """Continuous batching, paged KV cache and prefix caching on a CPU.

    `config` has engine_dir, max_batch_size, max_beam_width, max_seq_len, max_num_tokens,
    max_tokens_in_paged_kv_cache, enable_kv_cache_reuse, vocab_size and num_threads (0: all cores).
    """

    def __init__(self, config: dict[str, Any]) -> None:
        engine_dir = Path(config["engine_dir"])
        if not (engine_dir / "openvino_model.xml").exists():
            raise FileNotFoundError(f"there is no OpenVINO engine in {engine_dir}; build it again")
        self._num_blocks = -(-int(config["max_tokens_in_paged_kv_cache"]) // TOKENS_PER_BLOCK)
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.num_kv_blocks = self._num_blocks
        scheduler.max_num_seqs = int(config["max_batch_size"])
        scheduler.max_num_batched_tokens = int(config["max_num_tokens"])
        scheduler.enable_prefix_caching = bool(config["enable_kv_cache_reuse"])
        properties = {"INFERENCE_NUM_THREADS": int(config["num_threads"])}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            engine_dir,
            scheduler,
            "CPU",
            properties if properties["INFERENCE_NUM_THREADS"] else {},
        )
        self._tokenizer = self._pipeline.get_tokenizer()
        self._running: dict[int, _Running] = {}
        self._iteration = 0
        self.limits = EngineLimits(
            max_seq_len=int(config["max_seq_len"]),
            max_beam_width=int(config["max_beam_width"]),
            vocab_size=int(config["vocab_size"]),
        )

    def submit(self, request: GenerationRequest) -> None:
        if (needed := _num_blocks(request)) > self._num_blocks:
            raise InvalidRequest(
                f"the request may need {needed * TOKENS_PER_BLOCK} tokens of the KV cache, which "
                f"has {self._num_blocks * TOKENS_PER_BLOCK} (max_tokens_in_paged_kv_cache); ask "
                "for fewer tokens or sequences"
            )
        config = self._generation_config(request)
        input_ids = openvino.Tensor(np.array([request.input_ids], dtype=np.int64))
        try:
            handle = self._pipeline.add_request(request.id, input_ids, config)
        except RuntimeError as error:
            raise InvalidRequest(last_line(error)) from error
        self._running[request.id] = _Running(request, handle)

    def cancel(self, request_id: int) -> None:
        running = self._running.pop(request_id, None)
        if running is not None:
            running.handle.cancel()

    def has_work(self) -> bool:
        # A cancelled request leaves the scheduler in the next step, so ask the pipeline too.
        return bool(self._running) or self._pipeline.has_non_finished_requests()

    def step(self) -> list[SequenceUpdate]:
        self._pipeline.step()
        self._iteration += 1
        updates: list[SequenceUpdate] = []
        for running in list(self._running.values()):
            new = self._read(running)
            updates += new
            if new and (new[-1].error or all(each.finish_reason for each in new)):
                del self._running[running.request.id]
        return updates

    def stats(self) -> EngineStats:
        metrics = self._pipeline.get_metrics()
        used = round(metrics.cache_usage / 100 * self._num_blocks) if self._running else 0
        waiting = max(metrics.requests - metrics.scheduled_requests, 0)
        context = [each.request for each in self._running.values() if not each.has_tokens]
        return EngineStats(
            active_requests=len(self._running),
            scheduled_requests=min(metrics.scheduled_requests, len(self._running)),
            context_requests=max(len(context) - waiting, 0),
            waiting_requests=min(waiting, len(context)),
            kv_blocks_max=self._num_blocks,
            kv_blocks_used=used,
            tokens_per_block=TOKENS_PER_BLOCK,
            iteration=self._iteration,
            context_tokens=sum(len(request.input_ids) for request in context),
            memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )

    def _read(self, running: _Running) -> list[SequenceUpdate]:
        """What the last step brought for one request.

        One sequence streams; beams and parallel samples arrive whole, when the request ends.
        """
        status = running.handle.get_status()
        if status == _STATUS.IGNORED:
            why = "the KV cache has no room for this request (max_tokens_in_paged_kv_cache)"
            return [SequenceUpdate(running.request.id, error=why)]
        outputs: dict[int, Any] = {}
        while running.handle.can_read():
            for sequence, output in running.handle.read().items():
                if known := outputs.get(sequence):
                    known[0].extend(output.generated_ids)
                    known[1].extend(output.generated_log_probs)
                    known[2] = output
                else:
                    outputs[sequence] = [
                        list(output.generated_ids),
                        list(output.generated_log_probs),
                        output,
                    ]
        if not outputs:
            if status != _STATUS.FINISHED:
                return []
            sequences = range(running.request.num_return_sequences)
            return [
                SequenceUpdate(running.request.id, index, finish_reason="stop")
                for index in sequences
            ]
        running.has_tokens = True
        wanted = running.request.num_return_sequences
        if running.request.beam_width > 1:
            best = sorted(outputs, key=lambda sequence: -outputs[sequence][2].score)[:wanted]
        else:
            best = sorted(outputs)[:wanted]
        return [self._update(running, index, *outputs[key]) for index, key in enumerate(best)]

    def _update(
        self, running: _Running, index: int, ids: list[int], log_probs: list[float], output: Any
    ) -> SequenceUpdate:
        request = running.request
        # The end token ends the sequence without being part of it, as in TensorRT-LLM.
        if output.finish_reason == _FINISH.STOP and ids and ids[-1] == request.end_id:
            ids, log_probs = ids[:-1], log_probs[:-1]
        cum = running.cum_log_prob.get(index, 0.0) + sum(log_probs)
        running.cum_log_prob[index] = cum
        return SequenceUpdate(
            request.id,
            index,
            tuple(ids),
            _finish_reason(output.finish_reason),
            tuple(log_probs) if request.return_log_probs else (),
            cum if request.return_log_probs else None,
        )

    def _generation_config(self, request: GenerationRequest) -> Any:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = request.max_new_tokens
        config.logprobs = int(request.return_log_probs)
        config.min_new_tokens = request.min_tokens or 0
        if request.end_id is None or request.end_id < 0:
            config.ignore_eos = True
        else:
            config.eos_token_id = request.end_id
            config.stop_token_ids = {request.end_id}
        self._set_decoding(config, request)
        self._set_penalties(config, request)
        self._set_words(config, request)
        return config

    def _set_decoding(self, config: Any, request: GenerationRequest) -> None:
        config.num_return_sequences = request.num_return_sequences
        if request.beam_width > 1:
            config.num_beams = request.beam_width
            config.length_penalty = 1.0 if request.len_penalty is None else request.len_penalty
            if request.early_stopping:
                config.stop_criteria = openvino_genai.StopCriteria.EARLY
            return
        top_k, top_p = request.top_k or 0, request.top_p or 0.0
        is_greedy = top_k == 1 or (top_k == 0 and top_p == 0.0) or request.temperature == 0.0
        if is_greedy and request.num_return_sequences == 1:
            return
        config.do_sample = True
        config.rng_seed = request.seed or 0
        config.temperature = request.temperature or 1.0
        if is_greedy:
            config.top_k = 1
            return
        if top_k:
            config.top_k = top_k
        config.top_p = top_p or 1.0

    def _set_penalties(self, config: Any, request: GenerationRequest) -> None:
        for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
            value = getattr(request, name)
            if value is not None:
                setattr(config, name, value)

    def _set_words(self, config: Any, request: GenerationRequest) -> None:
        """Stop and bad words work on the text, so no other way to tokenise a word escapes them."""
        if request.stop_words:
            config.stop_strings = {self._text(word) for word in request.stop_words}
            config.include_stop_str_in_output = True
        if request.bad_words:
            # The automaton of the guide takes no word that starts with another.
            words = leave_out_longer(self._text(word) for word in request.bad_words)
            if any("\0" in word for word in words):
                raise InvalidRequest("bad_words_list has a word with a NUL; leave it out")
            guide = {"type": "structural_tag", "format": {"type": "any_text", "excludes": words}}
            structured = openvino_genai.StructuredOutputConfig()
            structured.structural_tags_config = json.dumps(guide)
            config.structured_output_config = structured

    def _text(self, word: tuple[int, ...]) -> str:
        text = str(self._tokenizer.decode(list(word), skip_special_tokens=False))
        if not text:
            raise InvalidRequest(f"the stop or bad word with the ids {list(word)} is no text")
        return text


def _num_blocks(request: GenerationRequest) -> int:
    """What `request` takes of the KV cache at most: sequences share the prompt's whole blocks."""
    num_sequences = max(request.beam_width, request.num_return_sequences)
    shared, rest = divmod(len(request.input_ids), TOKENS_PER_BLOCK)
    return shared + num_sequences * -(-(rest + request.max_new_tokens) // TOKENS_PER_BLOCK)


def _finish_reason(reason: Any) -> FinishReason | None:
    if reason == _FINISH.STOP:
        return "stop"
    return "length" if reason == _FINISH.LENGTH else None
