"""Connect the gateway to the engine workers of a model on this machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from trtllm_serve_cli.gateway.errors import unavailable
from trtllm_serve_cli.gateway.generation.balanced_backend import BalancedBackend
from trtllm_serve_cli.gateway.generation.worker_backend import WorkerBackend
from trtllm_serve_cli.runtime.text.tokenizer import Tokenizer

_POLL_S = 0.01
_TIMEOUT_S = 10.0


async def connect_workers(
    find_socket: Callable[[int], str | None], tokenizer: Tokenizer
) -> WorkerBackend | BalancedBackend | None:
    """Return a backend for the workers of all engines of a model.

    Return None if the first engine has no worker that accepts connections. `find_socket` returns
    the name of the socket of an engine's worker, or None. Its argument is the index of the engine.
    Raise `ApiError` in the same cases as `connect_worker`.
    """
    if await asyncio.to_thread(find_socket, 0) is None:
        return None
    first = await connect_worker(partial(find_socket, 0), tokenizer)
    if first.num_engines == 1:
        return first
    balanced = BalancedBackend()
    balanced.add(first)
    # Do not wait for the other workers: one of them may be restarting.
    for engine in range(1, first.num_engines):
        balanced.add(WorkerBackend(partial(find_socket, engine), tokenizer))
    return balanced


async def connect_worker(
    find_socket: Callable[[], str | None], tokenizer: Tokenizer, timeout_s: float = _TIMEOUT_S
) -> WorkerBackend:
    """Return a backend that is connected to an engine worker.

    Raise `ApiError` (503) if the worker does not accept the connection and report a ready engine
    within `timeout_s` seconds.
    """
    worker = WorkerBackend(find_socket, tokenizer)
    deadline_s = time.monotonic() + timeout_s
    while not worker.is_open:
        if time.monotonic() > deadline_s:
            await worker.close()
            raise unavailable(
                "its engine worker does not accept connections or is not ready; run the gateway "
                "and Triton as the same user"
            )
        await asyncio.sleep(_POLL_S)
    return worker
