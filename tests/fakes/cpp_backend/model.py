"""An emulator of Triton's C++ backend for TensorRT-LLM, as a Python-based backend of Triton.

The `config.json` of the engine determines the version, as for the backend itself. The emulator
follows that version's rules for parameters, inputs and outputs. Its engine generates deterministic
tokens: it repeats the shortest period of the prompt, each token plus the seed. A response ends with
a stop word. With draft tokens, the engine takes one step, and returns the draft tokens up to the
first wrong one and one more token. With an adapter, each token is increased by the first weight. In
`config.json`, `emulator.error_period` is N if each N-th token of a sequence is wrong,
`emulator.max_adapters` is the number of adapters in the cache, and `emulator.step_log` is a file to
which the emulator appends the number of steps of each request. Source: inflight_batcher_llm/src
(`model_instance_state.cc`, `utils.cc`, `utils.h`, `work_item.cc`) in
triton-inference-server/tensorrtllm_backend, tags v0.8.0 to v0.19.0, and `kTensorNames` in
NVIDIA/TensorRT-LLM, cpp/include/tensorrt_llm/batch_manager/inferenceRequest.h. The rules after 0.19
are those of its triton_backend/inflight_batcher_llm/src/utils.h@89fd9b74.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

Arrays = dict[str, Any]

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
# The duration of one step of the engine, so that a client has time to cancel a long response.
_STEP_S = 0.002
_BATCHING = ("V1", "v1", "inflight_batching", "inflight_fused_batching")
_FIRST_WITH_EXECUTOR = (0, 10)
_FIRST_WITH_ROWS = (0, 12)
_FIRST_WITH_SEQUENCES = (0, 14)
_FIRST_WITH_NEW_NAMES = (0, 20)
# Up to 0.9, the batch manager rejects inputs with other names.
_NAMES_IN_0_8 = frozenset(
    (
        "input_ids", "input_lengths", "request_output_len", "draft_input_ids", "end_id", "pad_id",
        "stop_words_list", "bad_words_list", "embedding_bias", "beam_width", "temperature",
        "runtime_top_k", "runtime_top_p", "len_penalty", "repetition_penalty", "min_length",
        "presence_penalty", "frequency_penalty", "random_seed", "return_log_probs",
        "return_context_logits", "return_generation_logits", "prompt_embedding_table",
        "prompt_vocab_size", "lora_weights", "lora_config",
    )
)  # fmt: skip
_NAMES_IN_0_9 = _NAMES_IN_0_8 | {"draft_logits", "lora_task_id"}
_NOT_CHECKED = frozenset(("START", "CORRID", "END", "stop", "streaming"))


class TritonPythonModel:
    """The functions that Triton calls for each model whose backend is `tensorrtllm`."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self._parameters = {
            name: value["string_value"] for name, value in config["parameters"].items()
        }
        policy = config.get("model_transaction_policy", {})
        self._is_decoupled = bool(policy.get("decoupled", False))
        if self._parameters.get("gpt_model_type") not in _BATCHING:
            raise pb_utils.TritonModelException(
                "Invalid gpt_model_type. Must be v1/inflight_batching/inflight_fused_batching."
            )
        path = Path(self._parameters["gpt_model_path"], "config.json")
        if not path.is_file():
            raise pb_utils.TritonModelException(f"Cannot find engine config file {path}")
        engine = json.loads(path.read_text(encoding="utf-8"))
        major, minor = engine["version"].split(".")[:2]
        self._version = (int(major), int(minor))
        self._vocab_size = int(engine["pretrained_config"]["vocab_size"])
        self._max_draft_len = _find_max_draft_len(engine["build_config"])
        emulator = engine.get("emulator", {})
        self._error_period = int(emulator.get("error_period", 0))
        self._step_log = emulator.get("step_log", "")
        self._max_adapters = int(emulator.get("max_adapters", 0))
        self._lock = threading.Lock()
        # Maps the task ids of the cached adapters, least recently used first, to their first
        # weights.
        self._adapters: dict[int, int] = {}
        if folder := self._parameters.get("lora_prefetch_dir", ""):
            for each in Path(folder).iterdir():
                weights = np.load(each / "model.lora_weights.npy")
                self._adapters[int(each.name)] = int(weights.reshape(-1)[0])
        self._excludes_input = self._flag("exclude_input_in_output", default=False)
        plugins = engine["build_config"].get("plugin_config", {})
        reuses_kv_cache = self._flag("enable_kv_cache_reuse", default=self._version >= (0, 19))
        # Newer versions disable reuse with a warning; the first of them is not known.
        if reuses_kv_cache and not plugins["use_paged_context_fmha"] and self._version < (0, 19):
            raise pb_utils.TritonModelException(
                "Assertion failed: When KV cache block reuse is set, model has to be built with "
                "paged context FMHA support"
            )
        if self._max_draft_len and not reuses_kv_cache:
            raise pb_utils.TritonModelException(
                "KV cache block reuse must be enabled for speculative decoding target model"
            )
        self._stopped: set[str] = set()
        self._threads: list[threading.Thread] = []

    def _flag(self, name: str, *, default: bool) -> bool:
        """Return a parameter. Like the backend, ignore a value that is not a flag."""
        text = self._parameters.get(name, "").lower()
        return {"true": True, "1": True, "false": False, "0": False}.get(text, default)

    def execute(self, requests: list[Any]) -> None:
        self._threads = [each for each in self._threads if each.is_alive()]
        for request in requests:
            thread = threading.Thread(target=self._serve, args=(request,))
            thread.start()
            self._threads.append(thread)

    def finalize(self) -> None:
        for thread in self._threads:
            thread.join()

    def _serve(self, request: Any) -> None:
        sender = request.get_response_sender()
        try:
            self._respond(request, sender)
        except Exception as error:
            failure = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
            sender.send(failure, flags=_FINAL)

    def _respond(self, request: Any, sender: Any) -> None:
        inputs = {each.name(): each.as_numpy() for each in request.inputs()}
        names = set(request.requested_output_names())
        if np.any(inputs.get("stop", False)):
            if not request.request_id():
                raise ValueError("Trying to stop a request but request ID is not provided")
            self._stopped.add(request.request_id())
            sender.send(pb_utils.InferenceResponse([]), flags=_FINAL)
            return
        if np.any(inputs.get("streaming", False)) and not self._is_decoupled:
            raise ValueError(
                "Streaming is only supported if model is deployed using decoupled mode."
            )
        if self._version >= _FIRST_WITH_EXECUTOR:
            for name in ("output_ids", "sequence_length"):
                if name not in names:
                    raise ValueError(f"{name} tensor must be present in list of output tensors")
        responses = (
            [pb_utils.Tensor(name, array) for name, array in outputs.items() if name in names]
            for outputs in self._generate_rows(self._split(inputs))
        )
        sent: list[Any] | None = None
        for tensors in responses:
            if sent is not None:
                sender.send(pb_utils.InferenceResponse(sent))
            sent = tensors
            if sender.is_cancelled() or request.request_id() in self._stopped:
                break
            if np.any(inputs.get("streaming", False)):
                time.sleep(_STEP_S)
        sender.send(pb_utils.InferenceResponse(sent or []), flags=_FINAL)

    def _split(self, inputs: Arrays) -> list[Arrays]:
        """Return the inputs of each row, without the batch dimension."""
        if self._version < _FIRST_WITH_EXECUTOR:
            known = _NAMES_IN_0_8 if self._version < (0, 9) else _NAMES_IN_0_9
            for name in inputs:
                if name not in known | _NOT_CHECKED:
                    raise ValueError(f"Invalid tensor name: {name}")
        num_rows = len(inputs["input_ids"])
        if num_rows > 1 and self._version < _FIRST_WITH_ROWS:
            raise ValueError("Invalid size for tensor request_output_len")
        if num_rows > 1 and not self._is_decoupled:
            raise ValueError("the emulator has no rule for several rows without decoupled mode")
        return [
            {name: array[row].reshape(-1) for name, array in inputs.items()}
            for row in range(num_rows)
        ]

    def _generate_rows(self, rows: list[Arrays]) -> Iterator[Arrays]:
        for index, row in enumerate(rows):
            num_sequences = int(_scalar(row, "num_return_sequences", 1))
            if self._version < _FIRST_WITH_SEQUENCES:
                num_sequences = 1
            for sequence in range(num_sequences):
                for outputs in self._generate(row, sequence):
                    if self._version >= _FIRST_WITH_ROWS and (
                        len(rows) > 1 or self._version < _FIRST_WITH_SEQUENCES
                    ):
                        outputs["batch_index"] = _number(index)
                    if self._version >= _FIRST_WITH_SEQUENCES and (
                        num_sequences > 1 or self._version < (0, 16)
                    ):
                        outputs["sequence_index"] = _number(sequence)
                    yield outputs

    def _generate(self, row: Arrays, sequence: int) -> Iterator[Arrays]:
        """Yield the outputs of each response for one sequence, or for all its beams."""
        has_new_names = self._version >= _FIRST_WITH_NEW_NAMES
        prompt = row["input_ids"][: int(row["input_lengths"][0])].tolist()
        seed = int(_scalar(row, "seed" if has_new_names else "random_seed", 0))
        min_length = int(_scalar(row, "min_tokens" if has_new_names else "min_length", 1))
        end_id = int(_scalar(row, "end_id", -1))
        num_beams = int(_scalar(row, "beam_width", 1))
        offset = seed + sequence + self._read_adapter(row)
        drafts = self._read_drafts(row)
        stop_words = _read_words(row)
        beams = []
        for beam in range(num_beams):
            ids: list[int] = []
            for token in itertools.cycle(_period(prompt)):
                if len(ids) >= int(row["request_output_len"][0]):
                    break
                generated = (token + offset + beam) % self._vocab_size
                if self._error_period and (len(prompt) + len(ids)) % self._error_period == 0:
                    generated = (generated + 1) % self._vocab_size
                if generated == end_id and len(ids) >= min_length:
                    break
                ids.append(generated)
                if any(ids[-len(word) :] == word for word in stop_words):
                    break
                if drafts is not None and ids != drafts[: len(ids)]:
                    break
            beams.append(ids)
        num_steps = len(beams[0]) if drafts is None else 1
        if self._step_log:
            with Path(self._step_log).open("a", encoding="utf-8") as log:
                log.write(f"{num_steps}\n")
        if np.any(row.get("streaming", False)):
            for end in range(1, len(beams[0]) + 1):
                yield self._outputs(row, prompt, [ids[end - 1 : end] for ids in beams], end == 1)
            return
        excludes_input = self._excludes_input
        if self._version >= _FIRST_WITH_SEQUENCES and "exclude_input_in_output" in row:
            excludes_input = bool(row["exclude_input_in_output"][0])
        shown = beams if excludes_input else [prompt + ids for ids in beams]
        outputs = self._outputs(row, prompt, beams, True)
        outputs["output_ids"], outputs["sequence_length"] = _pack(shown)
        if "acceptance_rate" in outputs and drafts:
            num_accepted = max(len(beams[0]) - 1, 0)
            outputs["total_draft_tokens"] = _number(len(drafts))
            outputs["total_accepted_draft_tokens"] = _number(num_accepted)
            outputs["acceptance_rate"] = np.array([[num_accepted / len(drafts)]], np.float32)
        yield outputs

    def _read_adapter(self, row: Arrays) -> int:
        """Return the first weight of the request's adapter, or 0 if the request has none."""
        if "lora_task_id" not in row:
            return 0
        if not self._max_adapters:
            raise ValueError("the emulator has no rule for adapters without max_adapters")
        task_id = int(row["lora_task_id"][0])
        with self._lock:
            first = self._adapters.pop(task_id, None)
            if first is None and "lora_weights" not in row:
                raise ValueError(
                    f"LoRA task {task_id} not found in cache. Please send LoRA weights with request"
                )
            if first is None:
                assert len(row["lora_config"]) % 3 == 0
                assert row["lora_weights"].dtype == np.float16
                first = int(row["lora_weights"][0])
            self._adapters[task_id] = first
            while len(self._adapters) > self._max_adapters:
                del self._adapters[next(iter(self._adapters))]
        return first

    def _read_drafts(self, row: Arrays) -> list[int] | None:
        """Return the draft tokens, or None if the request has none."""
        if "draft_input_ids" not in row:
            return None
        drafts: list[int] = row["draft_input_ids"].tolist()
        if not 0 < len(drafts) <= self._max_draft_len:
            raise ValueError(
                f"the request has {len(drafts)} draft tokens, but max_draft_len of the engine is "
                f"{self._max_draft_len}"
            )
        if int(row["request_output_len"][0]) != len(drafts) + 1:
            raise ValueError("the emulator has no rule for further steps after draft tokens")
        if "draft_logits" in row:
            likeliest = row["draft_logits"].reshape(len(drafts), self._vocab_size).argmax(axis=-1)
            if likeliest.tolist() != drafts:
                raise ValueError("draft_logits are not those of draft_input_ids")
        return drafts

    def _outputs(
        self, row: Arrays, prompt: list[int], beams: list[list[int]], is_first: bool
    ) -> Arrays:
        """Return the outputs of a response, all with a batch dimension of 1."""
        outputs: Arrays = {}
        outputs["output_ids"], outputs["sequence_length"] = _pack(beams)
        num_beams, num_tokens = len(beams), len(beams[0])
        # Older versions return zeros for outputs that the request does not ask for.
        has_placeholders = self._version < _FIRST_WITH_SEQUENCES
        if np.any(row.get("return_log_probs", False)):
            outputs["cum_log_probs"] = np.full((1, num_beams), -1.0, np.float32)
            outputs["output_log_probs"] = np.full((1, num_beams, num_tokens), -0.5, np.float32)
        elif has_placeholders:
            outputs["cum_log_probs"] = np.zeros((1, 1), np.float32)
            outputs["output_log_probs"] = np.zeros((1, 1, len(prompt)), np.float32)
        if np.any(row.get("return_context_logits", False)) and is_first:
            outputs["context_logits"] = np.stack(
                [np.eye(self._vocab_size, dtype=np.float32)[prompt]]
            )
        elif has_placeholders:
            outputs["context_logits"] = np.zeros((1, 1, 1), np.float32)
        if np.any(row.get("return_generation_logits", False)):
            logits = [np.eye(self._vocab_size, dtype=np.float32)[ids] for ids in beams]
            outputs["generation_logits"] = np.stack([np.stack(logits)])
        elif has_placeholders:
            outputs["generation_logits"] = np.zeros((1, 1, 1, 1), np.float32)
        if self._version >= (0, 19) and np.any(row.get("return_perf_metrics", False)):
            for name in ("alloc_new_blocks", "reused_blocks", "alloc_total_blocks"):
                outputs[f"kv_cache_{name}"] = _number(0)
            for name in ("arrival", "first_scheduled", "first_token", "last_token"):
                outputs[f"{name}_time_ns"] = np.array([[time.monotonic_ns()]], np.int64)
            outputs["total_draft_tokens"] = _number(0)
            outputs["total_accepted_draft_tokens"] = _number(0)
            outputs["acceptance_rate"] = np.zeros((1, 1), np.float32)
        if self._version >= (1, 0) and np.any(row.get("return_num_input_tokens", False)):
            outputs["num_input_tokens"] = _number(len(prompt))
        if self._version >= (1, 0) and np.any(row.get("return_num_output_tokens", False)):
            outputs["num_output_tokens"] = _number(sum(map(len, beams)))
        return outputs


def _find_max_draft_len(build: dict[str, Any]) -> int:
    """Return the maximum number of draft tokens of an engine for draft_tokens_external, or 0."""
    mode = build.get("speculative_decoding_mode", 2)
    return int(build.get("max_draft_len", 0)) if mode == 2 else 0


def _period(tokens: list[int]) -> list[int]:
    """Return the shortest tokens whose repetition continues `tokens`.

    An engine thus generates the same tokens in one request as in several, which each continue the
    response of the previous request.
    """
    for length in range(1, len(tokens) + 1):
        if tokens[length:] == tokens[:-length]:
            return tokens[-length:]
    return tokens


def _read_words(row: Arrays) -> list[list[int]]:
    """Return the stop words of a request."""
    if "stop_words_list" not in row:
        return []
    ids, ends = row["stop_words_list"].reshape(2, -1).tolist()
    starts = [0, *ends]
    return [ids[start:end] for start, end in zip(starts, ends, strict=False) if end > start]


def _pack(beams: list[list[int]]) -> tuple[Any, Any]:
    """Return `output_ids` and `sequence_length` of one row; shorter beams are padded with -1."""
    longest = max(map(len, beams))
    padded = [ids + [-1] * (longest - len(ids)) for ids in beams]
    lengths = [len(ids) for ids in beams]
    return np.array([padded], np.int32), np.array([lengths], np.int32)


def _scalar(row: Arrays, name: str, default: float) -> float:
    if name not in row:
        return default
    if len(row[name]) != 1:
        raise ValueError(f"Invalid size for tensor {name}")
    return float(row[name][0]) if name != "random_seed" else int(row[name][0])


def _number(value: int) -> Any:
    return np.array([[value]], dtype=np.int32)
