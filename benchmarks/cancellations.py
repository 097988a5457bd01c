"""Count how many cancelled requests Triton survives in front of a TensorRT engine.

    python benchmarks/cancellations.py [--way gateway|grpc]... [--requests 2000] [--clients 8]

Serves an emulated TensorRT engine: the emulator of Triton's C++ backend that the tests use, in the
real Triton. Clients start streams of text, read the first response and go away. `gateway` closes
the HTTP connection to the gateway, which then sends a stop request to Triton. `grpc` cancels the
gRPC call, which ends Triton 2.51 now and then. After each way, one more request must succeed.
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

from tests.e2e.conftest import MAKE_LETTERS
from tests.e2e.cpp_backend import EmulatedTllm, import_engine, make_engine, make_tllm
from tests.ports import free_ports
from trtllm_serve_cli.client.ask import generate, stream
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.errors import TllmError

MODEL = "emulated"
VERSION = "0.16.0"
NUM_TOKENS = 200
LIMIT_S = 120.0


def main() -> None:
    """Measure each way on a new server, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--way", action="append", choices=("gateway", "grpc"), default=[])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=8)
    arguments = parser.parse_args()
    print(f"{'way':<8} {'cancelled':>9} {'failed':>6} {'restarts':>8} {'answers afterwards':>18}")
    for way in arguments.way or ("gateway", "grpc"):
        with tempfile.TemporaryDirectory() as folder:
            print(measure(Path(folder), way, arguments.requests, arguments.clients), flush=True)


def measure(folder: Path, way: str, num_requests: int, num_clients: int) -> str:
    """Return the row of one way."""
    (port,) = free_ports(1)
    tllm = serve(folder, port)
    try:
        cancel = (lambda: cancel_over_http(port)) if way == "gateway" else cancel_over_grpc(tllm)
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
    except (OSError, http.client.HTTPException, TllmError):
        time.sleep(0.05)
        return False
    return True


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


def cancel_over_grpc(tllm: EmulatedTllm) -> Callable[[], None]:
    endpoint = tllm.endpoint()

    def cancel() -> None:
        request = GenerateRequest("abc", NUM_TOKENS)
        with contextlib.closing(stream(endpoint, MODEL, request)) as pieces:
            next(pieces)

    return cancel


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
