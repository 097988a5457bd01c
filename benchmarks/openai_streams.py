"""Send streamed chat completions to an OpenAI-compatible server from several processes.

The clients parse as little as possible, so that they can read more chunks per second than a server
writes. A chunk counts when it has text; the number of tokens is the server's own count.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

import numpy as np
import uvloop

_HAS_TEXT = re.compile(rb'"content": ?"[^"]')
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')


@dataclass
class ChatStream:
    """The times in seconds of a request and of the chunks of its response, and its tokens."""

    sent_s: float = 0.0
    chunk_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    error: str = ""


@dataclass(frozen=True)
class Load:
    """Requests of one process: at most `concurrency` of `bodies` run at the same time."""

    port: int
    bodies: list[bytes]
    concurrency: int


def chat_bodies(model: str, prompts: list[str], num_tokens: int) -> list[bytes]:
    """Return the bodies of chat completions with a fixed number of output tokens."""
    return [
        json.dumps(
            {"model": model, "messages": [{"role": "user", "content": prompt}],
             "max_tokens": num_tokens, "min_tokens": num_tokens, "ignore_eos": True,
             "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        ).encode()
        for prompt in prompts
    ]  # fmt: skip


class ChatClients:
    """Client processes that send the requests of a load together."""

    def __init__(self, num_processes: int) -> None:
        self._num_processes = num_processes
        # Forking a process that has used gRPC can block its children.
        self._pool = ProcessPoolExecutor(num_processes, mp_context=get_context("spawn"))

    def __enter__(self) -> ChatClients:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def run(self, port: int, bodies: list[bytes], concurrency: int) -> dict[str, Any]:
        """Send all requests. Return the rates, the times in milliseconds, or the errors."""
        count = min(self._num_processes, concurrency)
        loads = [
            Load(port, bodies[at::count], len(range(at, concurrency, count))) for at in range(count)
        ]
        return _summarize([each for part in self._pool.map(_run_process, loads) for each in part])


def _summarize(streams: list[ChatStream]) -> dict[str, Any]:
    errors = [each.error for each in streams if each.error]
    if errors:
        return {"errors": errors[:3], "num_failed": len(errors)}
    duration_s = max(each.chunk_s[-1] for each in streams) - min(each.sent_s for each in streams)
    gaps_ms = np.concatenate([np.diff(each.chunk_s) for each in streams]) * 1e3
    first_ms = np.array([each.chunk_s[0] - each.sent_s for each in streams]) * 1e3
    num_tokens = sum(each.num_tokens for each in streams)
    return {
        "tokens_per_s": num_tokens / duration_s,
        "num_tokens": num_tokens,
        "tokens_per_chunk": num_tokens / sum(len(each.chunk_s) for each in streams),
        "ttft_p50_ms": float(np.percentile(first_ms, 50)),
        "ttft_p99_ms": float(np.percentile(first_ms, 99)),
        "itl_p50_ms": float(np.percentile(gaps_ms, 50)),
        "itl_p99_ms": float(np.percentile(gaps_ms, 99)),
        "duration_s": duration_s,
    }


def _run_process(load: Load) -> list[ChatStream]:
    return uvloop.run(_run_all(load))


async def _run_all(load: Load) -> list[ChatStream]:
    streams: list[ChatStream] = []
    waiting = iter(load.bodies)
    await asyncio.gather(
        *(_take_turns(load.port, waiting, streams) for _ in range(load.concurrency))
    )
    return streams


async def _take_turns(port: int, waiting: Iterator[bytes], streams: list[ChatStream]) -> None:
    loop = asyncio.get_running_loop()
    for body in waiting:
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        protocol = _Reader(head.encode() + body)
        streams.append(protocol.stream)
        await loop.create_connection(lambda protocol=protocol: protocol, "127.0.0.1", port)
        await protocol.is_over


class _Reader(asyncio.Protocol):
    """A connection for one request."""

    def __init__(self, request: bytes) -> None:
        self.stream = ChatStream()
        self.is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._rest = b""
        self._has_status = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.stream.sent_s = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        at_s = time.perf_counter()
        if not self._has_status:
            self._has_status = True
            if not data.startswith(b"HTTP/1.1 200"):
                self._finish(data[:500].decode(errors="replace"))
                return
        # A chunk may be split over two reads, so count it when its end arrives.
        events, end, self._rest = (self._rest + data).rpartition(b"\n\n")
        if not end:
            return
        self.stream.chunk_s += [at_s] * len(_HAS_TEXT.findall(events))
        if usage := _COMPLETION_TOKENS.findall(events):
            self.stream.num_tokens = int(usage[-1])
        if b"[DONE]" in events:
            self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        self._finish(f"the connection closed before the end: {error}")

    def _finish(self, error: str = "") -> None:
        if not self.is_over.done():
            self.stream.error = error
            self.is_over.set_result(None)
            self._transport.close()
