"""Attack a gateway with hostile clients, and print what they received.

    python -m tests.e2e.gateway_attacks HOST PORT KEY SECONDS

Threads repeat randomly chosen attacks. The output is a JSON object: for each attack, the number of
times each HTTP status was received. The status "closed" means that the gateway closed the
connection, and "left" that the client left without reading a status.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import string
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

_NUM_THREADS = 8
_TIMEOUT_S = 20.0
# Mean pause of a thread between two attacks, so that the machine stays usable for other callers.
_MEAN_PAUSE_S = 0.05
_TEXTS = (
    "\x00", "\ufeff\u202e", "\ud7ff\ue000\uffff", "e\u0301" * 50,
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\u0130\u0131\ufb01", "\r\n\r\nGET / HTTP/1.1", "</s><s>[INST]", "\\ud800", "\U0010ffff",
)  # fmt: skip
# The maximum length of a text for the demo model's context of 8192 tokens.
_MAX_LETTERS = 8192 * 128
_SMUGGLED = (
    b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\n\r\n",
    b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: +2\r\n\r\n{}",
    b"Content-Length: 2\r\n X: folded\r\n\r\n{}",
    b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n2;a=" + b"b" * 10_000 + b"\r\n{}\r\n0\r\n\r\n",
)


@dataclass
class Attacker:
    """A hostile client with its own random numbers. Each attack returns the status it received."""

    address: tuple[str, int]
    key: str
    rng: random.Random
    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)

    def run(self, seconds: float) -> None:
        """Repeat random attacks until `seconds` have passed, and each attack at least once."""
        deadline_s = time.monotonic() + seconds
        order = list(ATTACKS)
        self.rng.shuffle(order)
        while order or time.monotonic() < deadline_s:
            name = order.pop() if order else self.rng.choice(list(ATTACKS))
            try:
                status = ATTACKS[name](self)
            except (ConnectionError, TimeoutError) as error:
                status = "timeout" if isinstance(error, TimeoutError) else "closed"
            self.statuses[name, status] += 1
            time.sleep(self.rng.expovariate(1 / _MEAN_PAUSE_S))

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=_TIMEOUT_S)

    def head(self, key: str | None = None, path: str = "/v1/completions") -> bytes:
        """Return the start of a request's head, without its last line."""
        return (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {self.key if key is None else key}\r\n"
        ).encode()

    def request(self, key: str | None = None, **fields: object) -> bytes:
        body = json.dumps({"model": "demo", "prompt": "a b c", "ignore_eos": True, **fields})
        encoded = body.encode()
        return self.head(key) + b"Content-Length: %d\r\n\r\n" % len(encoded) + encoded

    def send(self, *parts: bytes) -> str:
        """Send the parts of a request, and return the status of the response."""
        with self.connect() as sock:
            with contextlib.suppress(ConnectionError):
                for part in parts:
                    sock.sendall(part)
            return _read_status(sock)

    def connect_often(self) -> str:
        with contextlib.ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(self.connect())
        return "left"

    def send_head_slowly(self) -> str:
        with self.connect() as sock:
            for byte in self.head()[:20]:
                sock.sendall(bytes((byte,)))
                time.sleep(0.05)
        return "left"

    def leave_half_a_body(self) -> str:
        with self.connect() as sock:
            sock.sendall(self.head() + b"Content-Length: 1000\r\n\r\n" + b'{"model": ')
            time.sleep(self.rng.random())
        return "left"

    def send_too_much(self) -> str:
        size = self.rng.choice((10**9, 10**18))
        return self.send(self.head() + b"Content-Length: %d\r\n\r\n" % size, b"[" * 4_000_000)

    def send_deep_json(self) -> str:
        body = self.rng.choice((b"[", b'{"a":')) * 100_000
        return self.send(self.head() + b"Content-Length: %d\r\n\r\n" % len(body), body)

    def send_small_chunks(self) -> str:
        """Send chunks of one byte to the gateway's API, or to Triton's API behind it."""
        path = self.rng.choice(("/v1/completions", "/v2/models/demo/generate"))
        chunks = b"1\r\n \r\n" * 20_000
        head = self.head(path=path) + b"Transfer-Encoding: chunked\r\n\r\n"
        return self.send(head, chunks, b"0\r\n\r\n")

    def send_a_long_prompt(self) -> str:
        """Send a prompt that takes long to encode: a word of random letters, or many spaces."""
        letters = "".join(self.rng.choices(string.ascii_lowercase, k=_MAX_LETTERS))
        prompt = self.rng.choice((letters, " " * 400_000))
        return self.send(self.request(prompt=prompt, max_tokens=2))

    def send_many_prompts(self) -> str:
        return self.send(self.request(prompt=["a"] * 3000, n=128, max_tokens=2))

    def send_a_damaged_request(self) -> str:
        data = bytearray(self.request(max_tokens=2))
        for _ in range(self.rng.randrange(1, 6)):
            data[self.rng.randrange(len(data))] = self.rng.randrange(256)
        with self.connect() as sock:
            with contextlib.suppress(ConnectionError):
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)  # the damaged request may be too short
            return _read_status(sock)

    def smuggle(self) -> str:
        return self.send(self.head() + self.rng.choice(_SMUGGLED))

    def send_many_headers(self) -> str:
        flood = (
            b"".join(b"X-%d: a\r\n" % number for number in range(20_000)),
            b"X: " + b"a" * 1_000_000 + b"\r\n",
        )
        return self.send(self.head() + self.rng.choice(flood) + b"\r\n")

    def guess_keys(self) -> str:
        statuses = {self.send(self.request(f"sk-{self.rng.random()}")) for _ in range(20)}
        return "/".join(sorted(statuses))

    def leave_a_stream(self) -> str:
        """Disconnect after a random number of tokens, possibly before the first."""
        num_events = self.rng.randrange(12)
        with self.connect() as sock:
            sock.sendall(self.request(stream=True, max_tokens=500))
            received = b""
            while received.count(b"data: ") < num_events and (data := sock.recv(4096)):
                received += data
        return "left"

    def stop_reading(self) -> str:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            sock.settimeout(_TIMEOUT_S)
            sock.connect(self.address)
            sock.sendall(self.request(stream=True, max_tokens=500))
            time.sleep(1)
        return "left"

    def send_odd_text(self) -> str:
        text = "".join(self.rng.choices(_TEXTS, k=self.rng.randrange(1, 6)))
        return self.send(self.request(prompt=text, max_tokens=2, stop=[self.rng.choice(_TEXTS)]))


def _read_status(sock: socket.socket) -> str:
    line = sock.recv(64)
    return line.split()[1].decode() if line else "closed"


ATTACKS: dict[str, Callable[[Attacker], str]] = {
    attack.__name__: attack
    for attack in (
        Attacker.connect_often,
        Attacker.send_head_slowly,
        Attacker.leave_half_a_body,
        Attacker.send_too_much,
        Attacker.send_deep_json,
        Attacker.send_small_chunks,
        Attacker.send_a_long_prompt,
        Attacker.send_many_prompts,
        Attacker.send_a_damaged_request,
        Attacker.smuggle,
        Attacker.send_many_headers,
        Attacker.guess_keys,
        Attacker.leave_a_stream,
        Attacker.stop_reading,
        Attacker.send_odd_text,
    )
}


def main() -> None:
    host, port, key, seconds = sys.argv[1:]
    # Give way to the gateway and to the caller whose latency is measured. Attackers are elsewhere.
    os.nice(19)
    attackers = [
        Attacker((host, int(port)), key, random.Random(number)) for number in range(_NUM_THREADS)
    ]
    threads = [
        threading.Thread(target=attacker.run, args=(float(seconds),)) for attacker in attackers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts: dict[str, dict[str, int]] = {name: {} for name in ATTACKS}
    for (name, status), count in sorted(
        sum((each.statuses for each in attackers), Counter()).items()
    ):
        counts[name][status] = count
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
