"""Test the connection to an engine worker with a socket that the test controls."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway.fakes import LetterTokenizer
from trtllm_serve_cli.gateway.errors import ApiError
from trtllm_serve_cli.gateway.generation.worker_backend import WorkerBackend
from trtllm_serve_cli.runtime.engine import OPTIONAL_FIELDS, EngineLimits
from trtllm_serve_cli.runtime.worker.protocol import encode_frame, read_frame

NAME = f"tllm-test-{os.getpid()}"
BASIC = {"input_ids": (1,), "max_new_tokens": 2}
READY = {"is": "ready", "limits": dataclasses.asdict(EngineLimits(100, 1, 100)), "for_guests": {}}


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(f"\0{NAME}")
        sock.listen()
        yield sock


def submit(listener: socket.socket, ready: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return the frame that a worker receives for a request with these fields."""

    async def run() -> dict[str, Any]:
        backend = WorkerBackend(lambda: NAME, LetterTokenizer())
        try:
            sock, _ = await asyncio.to_thread(listener.accept)
            with sock:
                sock.sendall(encode_frame(ready))
                while not backend.is_open:
                    await asyncio.sleep(0)
                backend.submit({**BASIC, **fields}, lambda update: None)
                frame = await asyncio.to_thread(read_frame, sock)
                assert frame is not None
                return frame
        finally:
            await backend.close()

    return asyncio.run(run())


@pytest.mark.parametrize("ready", [READY, {**READY, "optional_fields": OPTIONAL_FIELDS}])
def test_request_without_optional_fields_suits_every_worker(
    listener: socket.socket, ready: dict[str, Any]
) -> None:
    request = submit(listener, ready, logit_bias=(), num_top_log_probs=0)["request"]
    assert not request.keys() & set(OPTIONAL_FIELDS)


def test_optional_fields_are_sent_to_a_worker_that_knows_them(listener: socket.socket) -> None:
    ready = {**READY, "optional_fields": ["min_p", "logit_bias"]}
    request = submit(listener, ready, min_p=0.5, logit_bias=((5, 1.0),))["request"]
    assert (request["min_p"], request["logit_bias"]) == (0.5, [[5, 1.0]])


@pytest.mark.parametrize(("known", "is_sent"), [(["min_p"], False), (["trace_parent"], True)])
def test_old_worker_receives_no_trace(
    listener: socket.socket, known: list[str], is_sent: bool
) -> None:
    ready = {**READY, "optional_fields": known}
    request = submit(listener, ready, trace_parent="00-1-2-01")["request"]
    assert ("trace_parent" in request) == is_sent


@pytest.mark.parametrize("known", [[], ["logit_bias"]])
def test_optional_fields_are_rejected_for_an_old_worker(
    listener: socket.socket, known: list[str]
) -> None:
    ready = {**READY, **({"optional_fields": known} if known else {})}
    with pytest.raises(ApiError) as rejected:
        submit(listener, json.loads(json.dumps(ready)), num_top_log_probs=3)
    assert rejected.value.status == 400
    assert "does not support num_top_log_probs" in rejected.value.message
    assert rejected.value.message.endswith("Ask the operator to run `tllm update`.")


@pytest.mark.parametrize(
    "payload", [b"{", b'{"is": "\xff"}', b'{"is": ' + b"[" * 100_000], ids=lambda value: value[:9]
)
def test_invalid_frame_fails_the_requests_with_the_reason(
    listener: socket.socket, payload: bytes
) -> None:
    async def run() -> Any:
        backend = WorkerBackend(lambda: NAME, LetterTokenizer())
        failed = asyncio.get_running_loop().create_future()
        try:
            sock, _ = await asyncio.to_thread(listener.accept)
            with sock:
                sock.sendall(encode_frame(READY))
                while not backend.is_open:
                    await asyncio.sleep(0)
                backend.submit(BASIC, failed.set_result)
                sock.sendall(struct.pack(">I", len(payload)) + payload)
                return await asyncio.wait_for(failed, 60)
        finally:
            await backend.close()

    assert asyncio.run(run()).error.startswith(
        "the connection to the engine worker failed (a frame is not a valid JSON object: "
    )
