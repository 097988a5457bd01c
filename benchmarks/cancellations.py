"""Count how many cancelled requests Triton survives in front of a TensorRT engine.

    python benchmarks/cancellations.py [--way WAY]... [--requests 2000] [--clients 8]

Serves an emulated TensorRT engine: the emulator of Triton's C++ backend that the tests use, in the
real Triton. Clients start streams, read the first response and go away:

- `gateway` closes the HTTP connection to the gateway, which then sends a stop request to Triton.
- `text` cancels the gRPC call to a text model.
- `tokens` cancels the gRPC call to `tensorrt_llm`.

After each way, one more request must succeed.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import grpc
import numpy as np
from messages import add
from tritonclient.grpc import service_pb2

from tests.e2e.conftest import MAKE_LETTERS
from tests.e2e.cpp_backend import EmulatedTllm, import_engine, make_engine, make_tllm
from tests.ports import free_ports
from trtllm_serve_cli.client.ask import generate, stream
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.client.transport.over_grpc import connect
from trtllm_serve_cli.errors import TllmError

MODEL = "emulated"
VERSION = "0.16.0"
WAYS = ("gateway", "text", "tokens")
NUM_TOKENS = 200
LIMIT_S = 120.0


def main() -> None:
    """Measure each way on a new server, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--way", action="append", choices=WAYS, default=[])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=8)
    arguments = parser.parse_args()
    print(f"{'way':<8} {'cancelled':>9} {'failed':>6} {'restarts':>8} {'answers afterwards':>18}")
    for way in arguments.way or WAYS:
        with tempfile.TemporaryDirectory() as folder:
            print(measure(Path(folder), way, arguments.requests, arguments.clients), flush=True)


def measure(folder: Path, way: str, num_requests: int, num_clients: int) -> str:
    """Return the row of one way."""
    (port,) = free_ports(1)
    tllm = serve(folder, port)
    try:
        cancel = plan_cancellation(tllm, way, port)
        with ThreadPoolExecutor(num_clients) as pool:
            results = list(pool.map(lambda _: succeeds(cancel), range(num_requests)))
        answers = wait_for_answer(tllm)
        restarts = tllm.state().restarts
    finally:
        tllm("stop", "--all")
    return (
        f"{way:<8} {sum(results):9} {results.count(False):6} {restarts:8} "
        f"{'yes' if answers else 'no':>18}"
    )


def serve(folder: Path, port: int) -> EmulatedTllm:
    """Serve an emulated engine, with the gateway on `port`."""
    letters = folder / "letters"
    subprocess.run((sys.executable, "-c", MAKE_LETTERS, str(letters)), check=True)
    (folder / "server").mkdir()
    tllm = make_tllm(folder / "server")
    import_engine(tllm, MODEL, make_engine(folder / "engine", VERSION), letters)
    started = tllm.start("-m", MODEL, "--openai", f"--openai-port={port}")
    if started.returncode:
        sys.exit(started.stdout + started.stderr)
    return tllm


def succeeds(cancel: Callable[[], None]) -> bool:
    """Return whether a request started. While Triton restarts, requests fail."""
    try:
        cancel()
    except (OSError, http.client.HTTPException, grpc.RpcError, TllmError):
        time.sleep(0.05)
        return False
    return True


def plan_cancellation(tllm: EmulatedTllm, way: str, port: int) -> Callable[[], None]:
    if way == "gateway":
        return lambda: cancel_over_http(port)
    endpoint = tllm.endpoint()
    cancel = cancel_text if way == "text" else cancel_tokens
    return lambda: cancel(endpoint)


def cancel_over_http(port: int) -> None:
    body = {"model": MODEL, "prompt": "abc", "max_tokens": NUM_TOKENS, "stream": True}
    with contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    ) as connection:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200 or not response.readline().startswith(b"data"):
            raise http.client.HTTPException(response.status)


def cancel_text(endpoint: Endpoint) -> None:
    request = GenerateRequest("abc", NUM_TOKENS)
    with contextlib.closing(stream(endpoint, MODEL, request)) as pieces:
        next(pieces)


def cancel_tokens(endpoint: Endpoint) -> None:
    request = service_pb2.ModelInferRequest(model_name="tensorrt_llm")
    add(request, "input_ids", "INT32", np.array([[1, 2, 3]], np.int32))
    add(request, "input_lengths", "INT32", np.array([[3]], np.int32))
    add(request, "request_output_len", "INT32", np.array([[NUM_TOKENS]], np.int32))
    add(request, "streaming", "BOOL", np.array([[True]]))
    with connect(endpoint.grpc) as stub:
        call = stub.ModelStreamInfer(iter([request]))
        next(call)
        call.cancel()


def wait_for_answer(tllm: EmulatedTllm) -> bool:
    """Return whether the server, which may just be restarting, answers a request in time."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(TllmError):
            return bool(generate(tllm.endpoint(), MODEL, GenerateRequest("abc")).text)
        time.sleep(1)
    return False


if __name__ == "__main__":
    main()
