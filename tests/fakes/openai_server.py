"""A fake server with the OpenAI API: models, chat completions and completions on a real socket.

with FakeOpenAI(api_key="secret") as server:
    urllib.request.urlopen(f"{server.url}/models")
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

WORDS = ("Machine", " ", "learning é")
Body = dict[str, Any]


def follow_prompt(body: Body) -> Iterator[str]:
    """Yield the pieces of text that the prompt selects; `forever` never ends."""
    prompt = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
    if prompt == "forever":
        yield from (f"on{number} " for number in count())
    elif prompt == "emoji":
        yield from ("é", "😀", "漢字", "\\u00e9 \\n")
    elif prompt != "nothing":
        yield from WORDS


def exact_length(body: Body) -> Iterator[str]:
    """Yield as many words as tokens are requested."""
    limit = body.get("max_completion_tokens") or body["max_tokens"]
    for _ in range(limit):
        yield "word "


@dataclass
class FakeOpenAI:
    """The behaviour of the server, and its requests. All fields may be changed while it runs.

    - `answer` yields the pieces of a text, each of `tokens_per_piece` tokens; `gap_s` passes before
      each piece. A list of prompts has one choice per prompt.
    - `rejects` are fields of a body that are answered with status 400 in OpenAI's form, as
      `unlisted` models are with 404; `token_ids` stands for a prompt of ids. If `hides_names` is
      set, the message does not name the field. `failure` is the status and body for every request.
      After `fails_after` requests, all others are answered with status 429.
    - `counts_tokens` is false if the server has no `usage`, and `has_token_ids` is true if it
      returns token ids on request, as vLLM does.
    - `reasoning` is sent before the text in the field `reasoning_key`.
    - `slice_bytes` splits the stream into writes of this size; `line_end` ends its lines, and
      comments are sent between events if `has_comments` is set.
    - After `breaks_after` pieces, the stream ends as `break_kind`: an `error` event, a `cut`
      connection, or an `end` without a finish reason.

    `bodies` are the requests in order, `headers` their headers, and `peers` their connections.
    `cancelled` is set if a client disconnects during a response.
    """

    answer: Callable[[Body], Iterator[str]] = follow_prompt
    gap_s: float = 0.0
    models: list[Body] = field(default_factory=lambda: [{"id": "org/demo", "max_model_len": 1000}])
    version: str = "0.9.1"
    api_key: str | None = None
    rejects: frozenset[str] = frozenset()
    unlisted: frozenset[str] = frozenset({"nope"})
    hides_names: bool = False
    failure: tuple[int, bytes] | None = None
    fails_after: int | None = None
    tokens_per_piece: int = 1
    counts_tokens: bool = True
    has_token_ids: bool = False
    reasoning: tuple[str, ...] = ()
    reasoning_key: str = "reasoning_content"
    slice_bytes: int = 0
    line_end: str = "\n"
    has_comments: bool = False
    breaks_after: int | None = None
    break_kind: str = "error"
    certificate: tuple[Path, Path] | None = None

    bodies: list[Body] = field(default_factory=list, init=False)
    paths: list[str] = field(default_factory=list, init=False)
    headers: list[dict[str, str]] = field(default_factory=list, init=False)
    peers: list[str] = field(default_factory=list, init=False)
    cancelled: threading.Event = field(default_factory=threading.Event, init=False)
    url: str = field(default="", init=False)

    def __enter__(self) -> FakeOpenAI:
        fake = self

        class Handler(_Handler):
            server_fake = fake

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if self.certificate is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(*self.certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        scheme = "https" if self.certificate else "http"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}/v1"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Failed(Exception):
    def __init__(self, status: int, message: str, code: str = "", param: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "error": {"message": message, "type": "error", "param": param or None, "code": code}
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_fake: FakeOpenAI

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        with suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, respond: Callable[[], None]) -> None:
        fake = self.server_fake
        try:
            if fake.failure is not None and self.command == "POST":
                self.rfile.read(int(self.headers["Content-Length"] or 0))
                self._send(*fake.failure)
                return
            respond()
        except _Failed as error:
            self._send(error.status, json.dumps(error.body).encode())
        except OSError:  # the client has disconnected
            fake.cancelled.set()
            self.close_connection = True

    def _check_key(self) -> None:
        key = self.server_fake.api_key
        if key is not None and self.headers["Authorization"] != f"Bearer {key}":
            raise _Failed(401, "Incorrect API key provided.", "invalid_api_key")

    def _get(self) -> None:
        fake = self.server_fake
        if self.path == "/version" and fake.version:
            self._send(200, json.dumps({"version": fake.version}).encode())
            return
        self._check_key()
        if self.path != "/v1/models":
            raise _Failed(404, "Not Found")
        self._send(200, json.dumps({"object": "list", "data": fake.models}).encode())

    def _post(self) -> None:
        fake = self.server_fake
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fake.bodies.append(body)
        fake.paths.append(self.path)
        fake.headers.append(dict(self.headers.items()))
        fake.peers.append("{}:{}".format(*self.client_address))
        self._check_key()
        if fake.fails_after is not None and len(fake.bodies) > fake.fails_after:
            raise _Failed(429, "slow down", "rate_limit_exceeded")
        self._check(body)
        if body.get("stream"):
            self._stream(body)
        else:
            self._send(200, json.dumps(self._respond(body)).encode())

    def _check(self, body: Body) -> None:
        fake = self.server_fake
        required = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}
        if self.path not in required:
            raise _Failed(404, "Not Found")
        if required[self.path] not in body:
            raise _Failed(400, f"{required[self.path]} is required", param=required[self.path])
        if body["model"] in fake.unlisted:
            raise _Failed(404, f"The model `{body['model']}` does not exist.", "model_not_found")
        for name in sorted(body.keys() & fake.rejects):
            if fake.hides_names:
                raise _Failed(400, "The request is invalid.")
            raise _Failed(400, f"Unsupported parameter: '{name}'.", "unsupported_parameter", name)
        if "token_ids" in fake.rejects and not isinstance(body.get("prompt", ""), str):
            raise _Failed(400, "The prompt must be a string.", param="prompt")

    def _respond(self, body: Body) -> Body:
        choices = []
        num_tokens = 0
        for index in range(_count_choices(body)):
            pieces = list(self._pieces(body))
            num_tokens += len(pieces)
            choice = self._choice(body, index, "".join(pieces), is_delta=False)
            choice["finish_reason"] = "stop"
            if body.get("logprobs"):
                choice["logprobs"] = _log_probs(body, len(pieces))
            if self.server_fake.has_token_ids and body.get("return_token_ids"):
                choice["token_ids"] = [7] * len(pieces)
            choices.append(choice)
        usage = {"usage": self._usage(num_tokens)} if self.server_fake.counts_tokens else {}
        return {**self._common(body), "choices": choices, **usage}

    def _pieces(self, body: Body) -> Iterator[str]:
        for piece in self.server_fake.answer(body):
            time.sleep(self.server_fake.gap_s)
            yield piece

    def _stream(self, body: Body) -> None:
        fake = self.server_fake
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        is_chat = "messages" in body
        num_tokens = 0
        for index in range(_count_choices(body)):
            if is_chat:
                self._send_choice(body, self._choice(body, index, "", is_delta=True))
            for text in fake.reasoning:
                delta = {"delta": {fake.reasoning_key: text}}
                self._send_choice(body, {"index": index, "finish_reason": None, **delta})
            for number, piece in enumerate(self._pieces(body)):
                if number == fake.breaks_after:
                    self._break()
                    return
                num_tokens += 1
                choice = self._choice(body, index, piece, is_delta=True)
                if body.get("logprobs"):
                    choice["logprobs"] = _log_probs(body, 1)
                if fake.has_token_ids and body.get("return_token_ids"):
                    choice["token_ids"] = [7]
                self._send_choice(body, choice)
            choice = self._choice(body, index, "", is_delta=True)
            self._send_choice(body, {**choice, "finish_reason": "stop"})
        if fake.counts_tokens and body.get("stream_options", {}).get("include_usage"):
            self._send_event(
                {**self._common(body), "choices": [], "usage": self._usage(num_tokens)}
            )
        self._send_data("[DONE]")
        self._write(b"0\r\n\r\n")

    def _usage(self, num_pieces: int) -> Body:
        num_tokens = num_pieces * self.server_fake.tokens_per_piece
        return {"prompt_tokens": 4, "completion_tokens": num_tokens, "total_tokens": 4 + num_tokens}

    def _break(self) -> None:
        match self.server_fake.break_kind:
            case "error":
                self._send_event({"error": {"message": "out of cheese", "code": "oops"}})
                self._write(b"0\r\n\r\n")
            case "cut":
                self.close_connection = True
            case "end":
                self._write(b"0\r\n\r\n")

    def _choice(self, body: Body, index: int, text: str, *, is_delta: bool) -> Body:
        key = "delta" if is_delta else "message"
        content = {"text": text} if "prompt" in body else {key: {"content": text}}
        if key in content and not text:
            content[key]["role"] = "assistant"
        return {"index": index, **content, "logprobs": None, "finish_reason": None}

    def _common(self, body: Body) -> Body:
        return {"id": "cmpl-1", "object": "x", "created": 1, "model": body["model"]}

    def _send_choice(self, body: Body, choice: Body) -> None:
        self._send_event({**self._common(body), "choices": [choice], "usage": None})

    def _send_event(self, event: Body) -> None:
        self._send_data(json.dumps(event, ensure_ascii=False))

    def _send_data(self, data: str) -> None:
        fake = self.server_fake
        comment = f": ping{fake.line_end}{fake.line_end}" if fake.has_comments else ""
        event = f"{comment}data: {data}{fake.line_end}{fake.line_end}".encode()
        size = fake.slice_bytes or len(event)
        for start in range(0, len(event), size):
            part = event[start : start + size]
            self._write(b"%x\r\n%b\r\n" % (len(part), part))

    def _write(self, data: bytes) -> None:
        self.wfile.write(data)

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status == 429:
            self.send_header("Retry-After", "7")
        self.end_headers()
        self.wfile.write(body)


def _count_choices(body: Body) -> int:
    prompt = body.get("prompt", "")
    has_rows = isinstance(prompt, list) and isinstance(prompt[0], list)
    return int(body.get("n", 1)) * (len(prompt) if has_rows else 1)


def _log_probs(body: Body, num_tokens: int) -> Body:
    if "messages" in body:
        return {"content": [{"token": "x", "logprob": -0.5, "bytes": None}] * num_tokens}
    return {"tokens": ["x"] * num_tokens, "token_logprobs": [-0.5] * num_tokens}
