"""Compute the embeddings that an API call requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from trtllm_serve_cli.gateway.errors import engine_error
from trtllm_serve_cli.gateway.generation.backend import Backend
from trtllm_serve_cli.runtime.engine import SequenceUpdate


async def compute_embeddings(backend: Backend, inputs: Sequence[Sequence[int]]) -> list[str]:
    """Return the embedding of each list of token ids in `inputs`.

    Each embedding is a string in the format of `encode_vector` in runtime/embedding.py. Cancelling
    the caller's task cancels the requests. Raise `ApiError` if the engine rejects or cannot
    complete a request.
    """
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    embeddings: dict[int, str] = {}

    def receive(index: int) -> Callable[[SequenceUpdate], None]:
        def on_update(update: SequenceUpdate) -> None:
            if done.done():
                return
            if update.error is not None:
                error = engine_error(
                    update.error, is_rejected=update.rejected, params={"input_ids": "input"}
                )
                done.set_exception(error)
            elif update.finish_reason is not None:
                embeddings[index] = update.embedding
                if len(embeddings) == len(inputs):
                    done.set_result(None)

        return on_update

    request_ids = []
    try:
        for index, ids in enumerate(inputs):
            fields = {"input_ids": tuple(ids), "max_new_tokens": 0}
            request_ids.append(backend.submit(fields, receive(index)))
        await done
    finally:
        for request_id in request_ids:
            backend.cancel(request_id)
    return [embeddings[index] for index in range(len(inputs))]
