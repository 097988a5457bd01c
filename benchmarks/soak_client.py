"""Send the requests of the soak test over gRPC, HTTP and the OpenAI-compatible gateway."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from soak_cases import GUIDE, TRITON, Answer, Case, Profile, draw_case

from trtllm_serve_cli.client.ask import stream
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.errors import TllmError

TIMEOUT_S = 120.0
_PAUSE_AFTER_FAILURE_S = 0.25
# Parts of the messages with which Triton's models reject invalid requests.
_REJECTIONS = ("request at most", "request at least", "lora_")


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses to which the clients send requests.

    `word_tokens` maps the words of prompts to token ids.
    """

    endpoint: Endpoint
    info: ModelInfo
    gateway_port: int
    word_tokens: dict[str, int]


def send(case: Case, profile: Profile, addresses: Addresses) -> Answer:
    """Send one request, and return what the client received."""
    sent_s = time.monotonic()
    if case.interface in TRITON:
        answer = _send_to_triton(case, profile, addresses)
    else:
        answer = _send_to_gateway(case, profile, addresses)
    return replace(answer, sent_s=sent_s, ended_s=time.monotonic())


def _send_to_triton(case: Case, profile: Profile, addresses: Addresses) -> Answer:
    is_guide = case.kind == "guide"
    request = GenerateRequest(
        case.prompt,
        max_tokens=case.num_tokens,
        min_tokens=case.num_tokens if case.has_length else None,
        stream=case.is_stream,
        seed=case.seed,
        lora_name=case.adapter or None,
        guided_decoding_guide_type="json_schema" if is_guide else None,
        guided_decoding_guide=json.dumps(GUIDE) if is_guide else None,
    )
    text, num_pieces, num_tokens = "", 0, 0
    pieces = stream(
        addresses.endpoint, profile.model, request, case.interface, TIMEOUT_S, info=addresses.info
    )
    try:
        with closing(pieces):
            for piece in pieces:
                text += piece.text
                num_pieces += bool(piece.text)
                num_tokens += piece.num_output_tokens or 0
                if case.kind == "leave" or (
                    case.kind == "cancel" and num_pieces > case.cancel_after
                ):
                    return Answer("cancelled", text, num_pieces)
    except TllmError as error:
        is_rejected = any(words in str(error) for words in _REJECTIONS)
        return Answer("rejected" if is_rejected else "failed", text, num_pieces, error=str(error))
    return Answer("complete", text, num_pieces, num_tokens)


def _send_to_gateway(case: Case, profile: Profile, addresses: Addresses) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", addresses.gateway_port, timeout=TIMEOUT_S)
    received = _Received()
    try:
        with closing(connection):
            path = "/v1/chat/completions" if case.interface == "chat" else "/v1/completions"
            body = json.dumps(_body(case, profile, addresses))
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            if case.kind == "leave":
                return Answer("left")
            response = connection.getresponse()
            if response.status != 200:
                message = f"{response.status}: {response.read().decode(errors='replace')}"
                outcome = "rejected" if response.status < 500 else "failed"
                return Answer(outcome, error=message)
            for chunk in _read_chunks(response, case.is_stream):
                received.add(chunk)
                if case.leaves_after(received.num_pieces):
                    return received.answer("cancelled")
    except (OSError, http.client.HTTPException, ValueError) as error:
        return received.answer("failed", f"{type(error).__name__}: {error}")
    if received.error or not received.finish_reason:
        return received.answer("failed", received.error or "the stream ended early")
    return received.answer("complete")


def _body(case: Case, profile: Profile, addresses: Addresses) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": case.adapter or profile.model,
        "max_tokens": case.num_tokens,
        "seed": case.seed,
        "stream": case.is_stream,
    }
    if not profile.is_exact:
        # Do not set this for the simulated engine, which ignores the seed of a greedy request.
        body["temperature"] = 0
    if case.kind == "guide":
        schema = {"name": "answer", "schema": GUIDE}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    if case.has_length:
        body |= {"ignore_eos": True, "min_tokens": case.num_tokens}
    if case.is_stream:
        body["stream_options"] = {"include_usage": True}
    if case.interface == "completions":
        return body | {"prompt": case.prompt}
    if profile.is_exact:
        # The chat template adds tokens to the prompt, from which the simulated engine draws. With a
        # bias, it draws only the biased tokens.
        body["logit_bias"] = {str(addresses.word_tokens[word]): 100 for word in case.words}
    return body | {"messages": [{"role": "user", "content": case.prompt}]}


def _read_chunks(response: http.client.HTTPResponse, is_stream: bool) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a stream, or the body of a whole response."""
    if not is_stream:
        yield json.loads(response.read())
        return
    for line in response:
        data = line.strip().removeprefix(b"data: ")
        if data == b"[DONE]":
            return
        if data and not line.startswith(b":"):
            yield json.loads(data)


@dataclass(slots=True)
class _Received:
    """The parts of a gateway's response so far."""

    text: str = ""
    num_pieces: int = 0
    num_tokens: int | None = None
    finish_reason: str = ""
    error: str = ""

    def add(self, chunk: dict[str, Any]) -> None:
        self.error = self.error or str(chunk.get("error") or "")
        if chunk.get("usage"):
            self.num_tokens = chunk["usage"]["completion_tokens"]
        for choice in chunk.get("choices", ()):
            message = choice.get("delta") or choice.get("message") or choice
            piece = message.get("content") or message.get("text") or ""
            self.text += piece
            self.num_pieces += bool(piece)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def answer(self, outcome: Any, error: str = "") -> Answer:
        return Answer(
            outcome, self.text, self.num_pieces, self.num_tokens, self.finish_reason, error
        )


@dataclass
class Load:
    """Clients in threads that send random requests at a limited rate.

    `on_answer(case, answer, is_disturbed)` is called for each response, by one thread at a time. A
    request is disturbed if a process was down at any time between its start and its end.
    """

    profile: Profile
    addresses: Addresses
    rate_per_s: float
    num_clients: int
    on_answer: Callable[[Case, Answer, bool], None]
    seed: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _is_sending: bool = False
    _is_over: threading.Event = field(default_factory=threading.Event)
    _num_in_flight: int = 0
    # The number of starts and ends of disturbances. It is odd during a disturbance.
    _num_disturbances: int = 0
    _threads: list[threading.Thread] = field(default_factory=list)
    # The tracebacks of clients that have crashed.
    crashes: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the clients in the `with` block. They do not send until `resume` is called."""
        for number in range(self.num_clients):
            rng = Random(f"{self.seed} {number}")
            thread = threading.Thread(target=self._run_client, args=(rng,), daemon=True)
            self._threads.append(thread)
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            self.resume()
            for thread in self._threads:
                thread.join(TIMEOUT_S)

    def resume(self) -> None:
        with self._changed:
            self._is_sending = True
            self._changed.notify_all()

    def pause(self) -> None:
        """Stop sending, and wait until all requests have ended."""
        with self._changed:
            self._is_sending = False
            if not self._changed.wait_for(lambda: not self._num_in_flight, 2 * TIMEOUT_S):
                raise TimeoutError(f"{self._num_in_flight} requests did not end")

    @contextlib.contextmanager
    def disturbed(self) -> Iterator[None]:
        """Mark the requests that are in flight during the `with` block as disturbed."""
        with self._changed:
            self._num_disturbances += 1
        yield
        with self._changed:
            self._num_disturbances += 1

    def _run_client(self, rng: Random) -> None:
        while not self._is_over.wait(rng.expovariate(self.rate_per_s / self.num_clients)):
            with self._changed:
                self._changed.wait_for(lambda: self._is_sending)
                if self._is_over.is_set():
                    return
                self._num_in_flight += 1
            try:
                self._send_one(rng)
            except Exception:
                self.crashes.append(traceback.format_exc())
            with self._changed:
                self._num_in_flight -= 1
                self._changed.notify_all()

    def _send_one(self, rng: Random) -> None:
        before = self._num_disturbances
        case = draw_case(rng, self.profile)
        answer = send(case, self.profile, self.addresses)
        with self._changed:
            is_disturbed = before % 2 == 1 or before != self._num_disturbances
            self.on_answer(case, answer, is_disturbed)
        if answer.outcome == "failed":
            self._is_over.wait(_PAUSE_AFTER_FAILURE_S)
