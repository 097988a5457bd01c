"""Send LoRA adapter weights to a Triton server if the server has not cached them.

A server caches adapters by task id. A request with an unknown task id must contain the weights;
later requests contain only the task id. If the server has evicted the adapter, it rejects a request
without the weights before generating the first token.

For this protocol and its error messages, see `PeftCacheManager` in
cpp/tensorrt_llm/batch_manager/peftCacheManager.cpp (NVIDIA/TensorRT-LLM). For engine kinds other
than tensorrt, the `tensorrt_llm` models that `tllm import` renders implement the same protocol.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from trtllm_serve_cli.client.generate import RawTensor
from trtllm_serve_cli.client.lora import load_adapter
from trtllm_serve_cli.client.model_info import LoraDatatype
from trtllm_serve_cli.errors import BadInput

# Maps input names to their Triton data types, shapes and contents.
Inputs = Mapping[str, tuple[str, tuple[int, ...], bytes]]
# Function that sends a request with additional inputs. The function returns the server's error
# message, or None, and calls its second argument for each successful response.
Infer = Callable[[Inputs, Callable[[], None]], Awaitable["str | None"]]

_NOT_CACHED = "not found in cache"
# After this many cache misses, a request sends the weights even if another request has just sent
# them. Repeated misses mean that the server evicts the adapter before other requests can use it.
_MAX_MISSES = 2


class UnusableAdapter(Exception):
    """Raised if adapter weights cannot be sent. The message contains the reason."""


class AdapterTask:
    """The state of a LoRA adapter on one server.

    `folder` contains the adapter's files on the gateway's machine. `datatype` is the data type of
    the weights that the server accepts. The files are read each time the weights are sent, because
    the gateway does not keep the weights in memory.

    If `task_id` is set, the server loaded the adapter under this id at startup. Otherwise, the task
    id is a hash of the weights, so gateways that serve the same adapter share one cache entry on
    the server.
    """

    def __init__(
        self, folder: Path, datatype: LoraDatatype = "FP16", task_id: int | None = None
    ) -> None:
        self._folder = folder
        self._datatype: LoraDatatype = datatype
        self._is_prefetched = task_id is not None
        self._task_id = task_id
        self._is_cached = self._is_prefetched
        self._num_sent = 0
        # A request that sends the weights holds the lock until the server's first response.
        self._sending = asyncio.Lock()

    async def run(self, infer: Infer) -> str | None:
        """Send a request that uses the adapter. Return the server's error message, or None.

        If the adapter is not cached, one request sends the weights. Concurrent requests wait until
        the server has responded to that request. Raise `UnusableAdapter` if the adapter files
        cannot be read, are not valid, or have changed. Also raise the errors of `infer`.
        """
        for _ in range(_MAX_MISSES):
            await self._sending.acquire()
            if not self._is_cached:
                return await self._run_with_weights(infer)
            self._sending.release()
            num_sent = self._num_sent
            error = await infer(self._select(), lambda: None)
            if error is None or _NOT_CACHED not in error:
                return error
            # Send the weights again, unless another request has already sent them.
            if num_sent == self._num_sent:
                self._is_cached = False
        await self._sending.acquire()
        return await self._run_with_weights(infer)

    async def _run_with_weights(self, infer: Infer) -> str | None:
        """Send a request with the weights. Release the lock after the first response or a failure.

        The server ignores the weights if it knows the task id, so it is safe to send them twice.
        """
        is_locked = True

        def release() -> None:
            nonlocal is_locked
            if is_locked:
                is_locked = False
                self._sending.release()

        def note_response() -> None:
            if is_locked:
                self._is_cached = True
                self._num_sent += 1
                release()

        try:
            weights = await asyncio.to_thread(self._read)
            return await infer({**self._select(), **weights}, note_response)
        finally:
            release()

    def _select(self) -> Inputs:
        assert self._task_id is not None
        return {"lora_task_id": ("UINT64", (1, 1), struct.pack("<Q", self._task_id))}

    def _read(self) -> Inputs:
        """Read the weights. Raise `UnusableAdapter` if they are unreadable, invalid or changed."""
        try:
            weights, config = load_adapter(self._folder, self._datatype)
        except BadInput as error:
            why = f" ({error.why})" if error.why else ""
            raise UnusableAdapter(f"{error.what.rstrip('.')}{why}") from error
        except OSError as error:
            raise UnusableAdapter(
                f"the adapter files cannot be read ({error.strerror or error}); ask the operator "
                "to check the files on the gateway's machine"
            ) from error
        if not self._is_prefetched:
            task_id = _hash(weights, config)
            if self._task_id not in (None, task_id):
                raise UnusableAdapter(
                    "the adapter files have changed since the adapter was first used; load the "
                    "adapter again or, if the operator configured it, ask the operator to restart "
                    "the gateway"
                )
            self._task_id = task_id
        return {
            "lora_weights": (self._datatype, weights.shape, weights.content),
            "lora_config": ("INT32", config.shape, config.content),
        }


def _hash(*tensors: RawTensor) -> int:
    """Return a 63-bit hash of the tensors, for use as a task id."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(repr(tensor.shape).encode())
        digest.update(tensor.content)
    return int.from_bytes(digest.digest()[:8], "little") >> 1
