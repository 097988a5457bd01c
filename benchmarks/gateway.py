"""Measure what the OpenAI-compatible gateway adds to the engine worker.

    python benchmarks/gateway.py [--streams 1 64 256 1024] [--step-ms 20] [--tokens 100]
                                 [--together] [--engines 1] [--source pypi:…|local:DIR]

Serves a simulated engine, whose steps generate a token for each stream, and sends the same prompts
as token ids over three paths: directly to the engine worker, to the gateway (completions, as a
stream), and to Triton over gRPC. All paths have the same client process. Each row has the tokens
per second, the time to the first token, the gaps between tokens, and the CPU time that the process
in the middle used: per chunk and per request.

The streams start one after another, and each sends its next request when a response ends, so that
requests arrive evenly. With `--together`, all streams start and end at the same time, which is the
most difficult case for the first token.

    python benchmarks/gateway.py --idle 1000 --step-ms 5000

Opens 1,000 streams through the gateway, and prints the gateway's memory before, and while all
streams are open and wait for their next token: resident (RSS) and private to the process (USS).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psutil
from cpu import cpu_by_process
from simulated import DEMO, import_simulated

from trtllm_serve_cli.client.model_info import fetch_model_config
from trtllm_serve_cli.gateway.errors import ApiError
from trtllm_serve_cli.gateway.generation.backend import Backend
from trtllm_serve_cli.gateway.generation.connect_workers import connect_workers
from trtllm_serve_cli.gateway.generation.triton_backend import TritonBackend
from trtllm_serve_cli.gateway.generation.worker_socket import find_worker_socket
from trtllm_serve_cli.launch.planning.local_plan import plan_for_this_machine
from trtllm_serve_cli.launch.servers.running import RunningServer
from trtllm_serve_cli.launch.supervisor.lifecycle import launch
from trtllm_serve_cli.launch.supervisor.stopping import stop_server
from trtllm_serve_cli.paths import find_home
from trtllm_serve_cli.runtime.engine import SequenceUpdate

PORTS = {"http_port": 8130, "grpc_port": 8131, "metrics_port": 8132, "openai_port": 9130}
# Tokens that are whole words in the default tokenizer, so that each token becomes a chunk.
PROMPT = list(range(1000, 1128))
NAME = "gateway-bench"
_MAX_ROUNDS = 20
_IDLE_TOKENS = 3
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens":(\d+)')


@dataclass
class Stream:
    """The number of tokens in a stream, and the arrival times of its chunks in seconds."""

    sent_s: float = 0.0
    num_tokens: int = 0
    times_s: list[float] = field(default_factory=list)

    def add(self, num_chunks: int) -> None:
        self.times_s += [time.perf_counter()] * num_chunks


class NoTokenizer:
    """A tokenizer that decodes nothing, because the direct paths are measured in tokens."""

    end_id = pad_id = vocab_size = 0
    unfinished_ids = None

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = True) -> str:
        return ""

    def decode_all(self, sequences: Any, *, skip_special_tokens: bool = True) -> list[str]:
        return [""] * len(sequences)


async def stream_from_backend(backend: Backend, num_tokens: int, stream: Stream) -> None:
    """Send a request to a backend, and wait for its tokens."""
    is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_update(update: SequenceUpdate) -> None:
        if update.error:
            is_over.set_exception(ApiError(500, update.error))
            return
        stream.add(bool(update.token_ids))
        stream.num_tokens += len(update.token_ids)
        if update.finish_reason is not None and not is_over.done():
            is_over.set_result(None)

    fields = {"input_ids": tuple(PROMPT), "max_new_tokens": num_tokens, "num_return_sequences": 1}
    stream.sent_s = time.perf_counter()
    backend.submit({**fields, "return_log_probs": False, "top_k": 1}, on_update)
    await is_over


class _HttpStream(asyncio.Protocol):
    """A connection that counts the events of one streamed completion."""

    def __init__(self, request: bytes, stream: Stream) -> None:
        self._request, self._stream = request, stream
        self._has_status = False
        self.is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._stream.sent_s = time.perf_counter()
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self._has_status and not data.startswith(b"HTTP/1.1 200"):
            self.is_over.set_exception(ApiError(500, data.decode(errors="replace")))
        self._has_status = True
        self._stream.add(data.count(b'"finish_reason":null'))
        if b"[DONE]" in data:
            self._stream.num_tokens = int(_COMPLETION_TOKENS.findall(data)[0])
            self.is_over.set_result(None)
            self._transport.close()


async def stream_from_gateway(num_tokens: int, stream: Stream) -> None:
    """Send a completion to the gateway, and wait for its chunks."""
    body = json.dumps(
        {"model": NAME, "prompt": PROMPT, "max_tokens": num_tokens, "ignore_eos": True,
         "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    )  # fmt: skip
    head = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    request = f"POST /v1/completions HTTP/1.1\r\n{head}\r\n\r\n{body}".encode()
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_connection(
        lambda: _HttpStream(request, stream), "127.0.0.1", PORTS["openai_port"]
    )
    await protocol.is_over


Send = Callable[[Stream], Awaitable[None]]


async def run(send: Send, num_streams: int, rounds: int, spread_s: float) -> list[Stream]:
    """Run `num_streams` streams at a time, each `rounds` times, and return them.

    The first streams start within `spread_s` seconds. If it is 0, all streams of a round start
    together.
    """
    streams = [Stream() for _ in range(num_streams * rounds)]
    batches = [streams[number::num_streams] for number in range(num_streams)]
    if not spread_s:
        for together in zip(*batches, strict=True):
            await asyncio.gather(*map(send, together))
        return streams

    async def run_one(number: int) -> None:
        await asyncio.sleep(number * spread_s / num_streams)
        for stream in batches[number]:
            await send(stream)

    await asyncio.gather(*map(run_one, range(num_streams)))
    return streams


def find_gateway(server: RunningServer) -> list[psutil.Process]:
    """Return the processes of the gateway: several on a machine with many cores."""
    children = psutil.Process(server.state.supervisor_pid).children()
    (gateway,) = (each for each in children if "trtllm_serve_cli.gateway" in each.cmdline())
    return [gateway, *gateway.children(recursive=True)]


def cpu_seconds_of(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU time that the processes used so far."""
    return sum(sum(each.cpu_times()[:2]) for each in processes)


def count_chunks_per_s(streams: list[Stream], num_streams: int, begin_s: float) -> float:
    """Return the chunks per second from `begin_s` until the first client is done."""
    end_s = min(each.times_s[-1] for each in streams[-num_streams:])
    times_s = (at_s for each in streams for at_s in each.times_s)
    return sum(begin_s <= at_s <= end_s for at_s in times_s) / (end_s - begin_s)


async def measure(
    path: str, send: Send, server: RunningServer, num_streams: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Measure one path with one number of streams."""
    rounds = min(max(2, arguments.requests // num_streams), _MAX_ROUNDS)
    spread_s = 0.0 if arguments.together else arguments.tokens * arguments.step_ms / 1000
    await run(send, num_streams, 1, spread_s)
    gateway = find_gateway(server)
    before = cpu_by_process(server)
    gateway_before_s = cpu_seconds_of(gateway)
    started_s = time.perf_counter()
    streams = await run(send, num_streams, rounds, spread_s)
    gateway_s = cpu_seconds_of(gateway) - gateway_before_s
    after = cpu_by_process(server)
    num_tokens = sum(each.num_tokens for each in streams)
    num_chunks = sum(len(each.times_s) for each in streams)
    first = sorted(each.times_s[0] - each.sent_s for each in streams)
    gaps = sorted(
        later - earlier
        for each in streams
        for earlier, later in zip(each.times_s, each.times_s[1:], strict=False)
    )
    stub_s = sum(
        sum(cpu.values()) - sum(before.get(part, {}).values())
        for part, cpu in after.items()
        if part.startswith(("stub", "tritonserver"))
    )
    middle_s = {"worker": 0.0, "gateway": gateway_s, "grpc": stub_s}[path]
    return {
        "path": path,
        "streams": num_streams,
        "lost": rounds * num_streams * arguments.tokens - num_tokens,
        "tokens_per_s": count_chunks_per_s(streams, num_streams, started_s + spread_s)
        * num_tokens
        / num_chunks,
        "tokens_per_chunk": num_tokens / num_chunks,
        "ttft_p50_ms": 1000 * statistics.median(first),
        "ttft_p99_ms": 1000 * first[int(len(first) * 0.99)],
        "gap_p99_ms": 1000 * gaps[int(len(gaps) * 0.99)],
        "cpu_us_per_chunk": 1e6 * middle_s / num_chunks,
        "cpu_s_per_1000_requests": 1000 * middle_s / len(streams),
        "gateway_memory_mb": sum(each.memory_info().rss for each in gateway) / 1e6,
    }


async def measure_all(
    server: RunningServer, arguments: argparse.Namespace, report: Callable[[dict[str, Any]], None]
) -> None:
    """Measure every path with every number of streams, and report each result."""
    tokenizer: Any = NoTokenizer()
    find_socket = partial(find_worker_socket, server.directory, "tensorrt_llm")
    worker = await connect_workers(find_socket, tokenizer)
    assert worker is not None
    core = fetch_model_config(server.endpoint, "tensorrt_llm")
    triton = TritonBackend(server.endpoint, core, tokenizer)
    paths: dict[str, Send] = {
        "worker": lambda stream: stream_from_backend(worker, arguments.tokens, stream),
        "gateway": lambda stream: stream_from_gateway(arguments.tokens, stream),
        "grpc": lambda stream: stream_from_backend(triton, arguments.tokens, stream),
    }
    for number in arguments.streams:
        for path in arguments.paths:
            report(await measure(path, paths[path], server, number, arguments))
    await asyncio.gather(worker.close(), triton.close())


async def measure_idle(server: RunningServer, num_streams: int) -> dict[str, Any]:
    """Measure the gateway's memory while all streams are between two tokens."""
    gateway = find_gateway(server)

    def memory_mb() -> dict[str, float]:
        facts = [each.memory_full_info() for each in gateway]
        return {name: sum(getattr(each, name) for each in facts) / 1e6 for name in ("rss", "uss")}

    before = memory_mb()
    streams = [Stream() for _ in range(num_streams)]
    running = asyncio.gather(*(stream_from_gateway(_IDLE_TOKENS, each) for each in streams))
    while not all(each.times_s for each in streams):
        await asyncio.sleep(0.1)
    idle, num_open = memory_mb(), sum(not each.num_tokens for each in streams)
    await running
    return {"streams": num_open, "before_mb": before, "idle_mb": idle}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64, 256, 1024])
    parser.add_argument("--paths", nargs="+", default=["worker", "gateway", "grpc"])
    parser.add_argument("--step-ms", type=float, default=20)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--idle", type=int, metavar="STREAMS")
    parser.add_argument("--source", default=DEMO)
    arguments = parser.parse_args()
    home = find_home()
    import_simulated(
        home,
        NAME,
        arguments.step_ms,
        source=arguments.source,
        max_batch_size=arguments.idle or max(arguments.streams),
        parameters={"tensorrt_llm_instance_count": str(arguments.engines)},
    )
    server = launch(plan_for_this_machine(home, [NAME], PORTS), on_progress=lambda loading: None)
    try:
        if arguments.idle:
            print(json.dumps(asyncio.run(measure_idle(server, arguments.idle))))
            return
        num_processes = len(find_gateway(server))
        print(f"{platform.machine()}, {os.cpu_count()} cores, {num_processes} gateway processes, "
              f"{arguments.engines} engines; a step of {arguments.step_ms:g} ms, "
              f"{arguments.tokens} tokens per request, streams start "
              f"{'together' if arguments.together else 'one after another'}")  # fmt: skip
        print("path     streams  tokens/s  lost  tokens/chunk  TTFT p50 / p99 ms  gap p99 ms  "
              "CPU us/chunk  CPU s/1000 requests  memory MB", flush=True)  # fmt: skip
        asyncio.run(measure_all(server, arguments, print_row))
    finally:
        stop_server(server)


def print_row(row: dict[str, Any]) -> None:
    """Print one line of the table."""
    print(f"{row['path']:7}  {row['streams']:7}  {row['tokens_per_s']:8.0f}  {row['lost']:4}  "
          f"{row['tokens_per_chunk']:12.2f}  "
          f"{row['ttft_p50_ms']:8.1f} / {row['ttft_p99_ms']:6.1f}  {row['gap_p99_ms']:10.1f}  "
          f"{row['cpu_us_per_chunk']:12.1f}  {row['cpu_s_per_1000_requests']:19.2f}  "
          f"{row['gateway_memory_mb']:9.0f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
