"""The adapter cache of TensorRT-LLM, for the fake Triton's model `tensorrt_llm`.

Source of the rules and messages: `PeftCacheManager::addRequestPeft` (batch_manager/
peftCacheManager.cpp) and `loraValidateRequestTensors` (runtime/loraUtils.cpp) in
NVIDIA/TensorRT-LLM, cpp/tensorrt_llm.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.fakes.triton.answers import ModelError, Outputs, Request, tokens


@dataclass
class LoraCache:
    """An answer with adapters: all tokens of a response are the first weight of its adapter.

    The cache has room for `capacity` adapters, and evicts the least recently used one. `datatype`
    is the type of the engine and of the weights. `sent` contains the task ids of the requests with
    weights, in order. `tasks` may be cleared, as by a restart of the server.
    """

    capacity: int = 2
    datatype: str = "FP16"
    tasks: OrderedDict[int, int] = field(default_factory=OrderedDict)
    sent: list[int] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, request: Request) -> Iterator[Outputs]:
        with self._lock:
            token = self._find(request.inputs)
        for _ in range(request.inputs["request_output_len"]):
            yield {**tokens(1), "output_ids": [token]}

    def _find(self, inputs: dict[str, Any]) -> int:
        present = [name in inputs for name in ("lora_weights", "lora_config")]
        if "lora_task_id" not in inputs:
            assert not any(present), "weights without a task id"
            return 0
        task_id = int(inputs["lora_task_id"])
        if any(present):
            assert all(present), "only one of lora_weights and lora_config"
            self.sent.append(task_id)
            value = self._check(inputs["lora_weights"], inputs["lora_config"])
            self.tasks.setdefault(task_id, value)
        if task_id not in self.tasks:
            raise ModelError(
                f"LoRA task {task_id} not found in cache. Please send LoRA weights with request"
            )
        self.tasks.move_to_end(task_id)
        token = self.tasks[task_id]
        while len(self.tasks) > self.capacity:
            self.tasks.popitem(last=False)
        return token

    def _check(self, weights: tuple[Any, ...], config: tuple[Any, ...]) -> int:
        """Return the first weight. Raise `ModelError` if the types or shapes are wrong."""
        (datatype, shape, content), (config_type, config_shape, config_content) = weights, config
        if datatype != self.datatype:
            raise ModelError("Expected lora weights to be the same data type as base model")
        if len(shape) != 3 or shape[0] != 1 or len(content) != 2 * shape[1] * shape[2]:
            raise ModelError(f"invalid lora_weights {shape}")
        if config_type != "INT32" or config_shape != [1, shape[1], 3]:
            raise ModelError(f"invalid lora_config {config_type} {config_shape}")
        if len(config_content) != 4 * shape[1] * 3:
            raise ModelError("invalid lora_config")
        bits = np.frombuffer(content[:2], np.uint16)
        wide = bits.astype(np.uint32) << 16
        return int(bits.view(np.float16)[0] if datatype == "FP16" else wide.view(np.float32)[0])
