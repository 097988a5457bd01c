"""Hostile clients of the gateway: it keeps serving others, and releases what they held."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import socket
import statistics
import string
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import openai
import psutil
import pytest

from tests.e2e.conftest import Tllm
from tests.e2e.core import gauge
from tests.ports import free_ports
from tests.waiting import wait_until
from trtllm_serve_cli.client.endpoint import Endpoint

# The maximum length of a text for the demo model's context of 8192 tokens.
MAX_LETTERS = 8192 * 128
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
# The duration of the mixed attacks. The default, 3 s, is for runs of the whole suite.
MINUTES = float(os.environ.get("TLLM_ABUSE_MINUTES", "0.05"))


@pytest.fixture(scope="module")
def address(served: Tllm) -> tuple[str, int]:
    host, _, port = str(served.status()["openai"]).removeprefix("http://").rpartition(":")
    return host, int(port)


@pytest.fixture
def gateway(served: Tllm, address: tuple[str, int], endpoint: Endpoint) -> Iterator[psutil.Process]:
    """Check after the test that the same process still serves, and that it holds no more."""
    supervisor = psutil.Process(served.status()["supervisor_pid"])
    (process,) = (
        each for each in supervisor.children() if "trtllm_serve_cli.gateway" in each.cmdline()
    )
    ask(address)
    num_fds, memory = process.num_fds(), process.memory_info().rss
    yield process
    ask(address)
    wait_until(lambda: gauge(endpoint, "active") == 0)
    wait_until(lambda: process.num_fds() <= num_fds + 5)
    assert process.is_running()
    assert process.memory_info().rss < memory + 100e6


def ask(address: tuple[str, int]) -> str:
    """Return the text of a short completion."""
    url = f"http://{address[0]}:{address[1]}/v1"
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0, timeout=30) as client:
        answer = client.completions.create(
            model="demo", prompt="One, two,", max_tokens=4, temperature=0
        )
        return answer.choices[0].text


def request(**fields: object) -> bytes:
    body = json.dumps({"model": "demo", "prompt": "a", "ignore_eos": True, **fields}).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def read_status(sock: socket.socket) -> int | None:
    """Return the status of the response, or None if the server closes the connection."""
    with contextlib.suppress(ConnectionError):
        line = sock.recv(64)
        return int(line.split()[1]) if line else None
    return None


def test_connections_that_send_nothing(gateway: psutil.Process, address: tuple[str, int]) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(400):
            sock = stack.enter_context(socket.create_connection(address))
            if number % 2:
                sock.sendall(HEAD[: random.Random(number).randrange(1, len(HEAD))])
        assert ask(address)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",  # the start of a TLS handshake
        b"GET / HTTP/9.9\r\n\r\n",
        b"G\x00ET / HTTP/1.1\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 1000000000\r\n\r\n{",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
        HEAD + b"X: " + b"a" * 1_000_000 + b"\r\n\r\n",
        HEAD + b"".join(b"X-%d: a\r\n" % number for number in range(20_000)) + b"\r\n",
        HEAD + b"Content-Length: 2\r\n\r\n\xff\xfe",
        request(prompt="\ud800"),
        request(stop=["\U0001f600"], prompt="\x00\u202e\ufeff", max_tokens=3),
    ],
    ids=["tls", "version", "method", "length", "large", "smuggling", "chunk", "header", "headers",
         "json", "surrogate", "unicode"],
)  # fmt: skip
def test_malformed_requests(gateway: psutil.Process, address: tuple[str, int], data: bytes) -> None:
    with socket.create_connection(address, timeout=20) as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(data)
        assert read_status(sock) in (None, 200, 400, 408, 413, 431, 505)


def test_clients_that_leave_after_the_first_token(
    gateway: psutil.Process, address: tuple[str, int]
) -> None:
    for _ in range(40):
        with socket.create_connection(address, timeout=20) as sock:
            sock.sendall(request(stream=True, max_tokens=2000))
            assert read_status(sock) == 200


def test_long_prompts_do_not_stop_streams(
    gateway: psutil.Process, address: tuple[str, int]
) -> None:
    """A text of random letters takes longest to encode: it consists of a single word."""
    letters = "".join(random.Random(1).choices(string.ascii_lowercase, k=MAX_LETTERS))
    url = f"http://{address[0]}:{address[1]}/v1"
    with (
        openai.OpenAI(base_url=url, api_key="any", max_retries=0, timeout=60) as client,
        ThreadPoolExecutor() as threads,
        client.completions.create(
            model="demo", prompt="a", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
        ) as stream,
    ):
        next(stream)
        long = threads.submit(client.completions.create, model="demo", prompt=letters)
        num_chunks = 0
        while not long.done():
            next(stream)
            num_chunks += 1
        with pytest.raises(openai.BadRequestError, match="maximum context length") as raised:
            long.result()
    # The tokens were counted, not estimated.
    assert re.search(r"the prompt has \d{6} tokens", str(raised.value))
    assert num_chunks > 5


def test_chunks_of_one_byte_are_joined(gateway: psutil.Process, address: tuple[str, int]) -> None:
    """Triton's own HTTP front end ends if it receives such a body."""
    body = json.dumps({"text_input": "a", "max_tokens": 2}).encode() + b" " * 20_000
    head = HEAD.replace(b"/v1/completions", b"/v2/models/demo/generate")
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    with socket.create_connection(address, timeout=60) as sock:
        sock.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
        assert read_status(sock) == 200


def test_clients_that_do_not_read(
    gateway: psutil.Process, address: tuple[str, int], endpoint: Endpoint
) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(address)
            sock.sendall(request(stream=True, max_tokens=4000))
        wait_until(lambda: gauge(endpoint, "active") >= 1)
        assert ask(address)


@dataclass(frozen=True)
class Attacked:
    """A server with a simulated engine and a gateway that requires a key."""

    tllm: Tllm
    address: tuple[str, int]
    key: str

    @property
    def gateway(self) -> psutil.Process:
        return psutil.Process(self.tllm.state().gateway_pid)

    def ask_during_attacks(self, seconds: float) -> tuple[list[float], dict[str, dict[str, int]]]:
        """Repeat a short request while others attack the gateway, with each attack at least once.

        Return the durations in seconds, and the number of received statuses for each attack.
        """
        words = (*self.address, self.key, seconds)
        command = (sys.executable, "-m", "tests.e2e.gateway_attacks", *map(str, words))
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attackers:
            durations_s = self.ask_until(lambda: attackers.poll() is not None)
            assert attackers.stdout is not None
            return durations_s, json.loads(attackers.stdout.read())

    def ask_until(self, is_over: Callable[[], bool]) -> list[float]:
        """Repeat a short request, at least 20 times, and return the durations in seconds."""
        durations_s: list[float] = []
        url = f"http://{self.address[0]}:{self.address[1]}/v1"
        with openai.OpenAI(base_url=url, api_key=self.key, max_retries=0, timeout=60) as client:
            while len(durations_s) < 20 or not is_over():
                started_s = time.monotonic()
                answer = client.completions.create(
                    model="demo", prompt="One, two,", max_tokens=8, extra_body={"ignore_eos": True}
                )
                durations_s.append(time.monotonic() - started_s)
                assert answer.usage is not None and answer.usage.completion_tokens == 8
        return durations_s


@pytest.fixture
def attacked(source: str, tmp_path: Path) -> Iterator[Attacked]:
    timing = tmp_path / "timing.json"
    timing.write_text(json.dumps({"timing": {"step_s": 0.02}, "limits": {"max_batch_size": 256}}))
    tllm = Tllm(tmp_path / "home")
    tllm.done("import", "-m", "demo", "-s", source, "--engine", "sim", "--timing", str(timing))
    key = tllm.done("keys", "add", "alice").strip()
    port = free_ports(1)[0]
    started = tllm.start("--openai", f"--openai-port={port}")
    assert started.returncode == 0, started.stdout + started.stderr
    yield Attacked(tllm, ("127.0.0.1", port), key)
    tllm("stop", "--all")


@pytest.mark.timeout(300 + 240 * MINUTES)
def test_mixed_attacks(attacked: Attacked) -> None:
    """Attack for a few seconds, or for TLLM_ABUSE_MINUTES minutes.

    A long run also checks the latency of another caller, which depends on the machine.
    """
    gateway, endpoint = attacked.gateway, attacked.tllm.endpoint()
    quiet_until_s = time.monotonic() + MINUTES * 6
    quiet_s = attacked.ask_until(lambda: time.monotonic() > quiet_until_s)
    memory = 0
    for _ in range(2):
        attacked.ask_during_attacks(MINUTES * 30)
        memory = max(memory, gateway.memory_info().rss)
    for _ in range(5):
        attacked_s, counts = attacked.ask_during_attacks(MINUTES * 30)
        # The buffers shrink again, unlike memory that is lost with each attack.
        if (attacked_memory := gateway.memory_info().rss) < memory + 30e6:
            break

    assert all(counts.values())
    received = {status for each in counts.values() for status in each}
    # A damaged head can be a valid request for another method or path.
    assert received <= {"left", "closed", "200", "400", "401", "404", "405", "408", "411", "413",
                        "415", "431", "501", "505"}, counts  # fmt: skip
    assert set(counts["guess_keys"]) == {"401"} and set(counts["send_odd_text"]) == {"200"}
    assert set(counts["send_a_long_prompt"]) <= {"200", "400"}
    assert set(counts["send_many_prompts"]) == {"400"}
    wait_until(lambda: gauge(endpoint, "active") == 0)
    # The caller's connection, the attackers' closed connections and the log stay open at most.
    wait_until(lambda: len(gateway.net_connections()) <= 8)
    state = attacked.tllm.state()
    assert (state.gateway_pid, state.gateway_restarts, state.restarts) == (gateway.pid, 0, 0)
    assert attacked_memory < memory + 30e6
    report = {"quiet_p95_s": p95(quiet_s), "attacked_p95_s": p95(attacked_s), "attacks": counts}
    print(json.dumps({**report, "memory_mb": [memory / 1e6, attacked_memory / 1e6]}))
    if MINUTES >= 1:
        assert report["attacked_p95_s"] < 1.5 * report["quiet_p95_s"]


def p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]
