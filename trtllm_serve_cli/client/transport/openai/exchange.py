"""Send HTTP requests to an OpenAI-compatible server."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from typing import Any

from trtllm_serve_cli.client.generate import GenerateRequest, Piece
from trtllm_serve_cli.client.transport import error_mapping
from trtllm_serve_cli.client.transport.cancellation import Cancellation
from trtllm_serve_cli.client.transport.http_exchange import (
    CONNECT_TIMEOUT_S,
    LONGEST_ERROR_BYTES,
    describe_failure,
    find_remaining_s,
    read_events,
    shut_down,
)
from trtllm_serve_cli.client.transport.openai import failures
from trtllm_serve_cli.client.transport.openai.endpoint import (
    Api,
    BaseUrl,
    OpenAIEndpoint,
    is_header_value,
)
from trtllm_serve_cli.client.transport.openai.failures import ApiFailure
from trtllm_serve_cli.client.transport.openai.request_body import (
    Body,
    find_rejected,
    plan_body,
    replace_rejected,
)
from trtllm_serve_cli.client.transport.openai.response_pieces import DONE, PieceParser
from trtllm_serve_cli.errors import BadInput


class Rejected(Exception):
    """Raised if the server responds with an error status."""

    def __init__(self, failure: ApiFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(slots=True)
class OpenAIModel:
    """A model on an OpenAI-compatible server, as a source of responses.

    If the server rejects a field in `request_body.REPLACEMENTS`, the request is sent again with the
    field replaced or removed. Later requests do not contain the rejected field.
    """

    endpoint: OpenAIEndpoint
    name: str
    api: Api = "chat"
    _rejected: frozenset[str] = field(default=frozenset(), init=False)

    def stream(
        self, request: GenerateRequest, timeout_s: float | None, cancellation: Cancellation
    ) -> Generator[Piece, None, None]:
        """Yield the pieces of the response as they arrive.

        Closing the generator closes the connection to the server. Raise the same exceptions as
        `client.ask.stream`.
        """
        body = plan_body(self.name, self.api, request)
        headers = _plan_headers(request)
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        rejected = self._rejected
        while True:
            sent = replace_rejected(body, rejected)
            try:
                yield from self._exchange(sent, headers, deadline_s, timeout_s, cancellation)
            except Rejected as error:
                name = find_rejected(sent, error.failure)
                if name is None:
                    raise failures.request_failed(
                        self.endpoint.url, sent["model"], error.failure
                    ) from error
                rejected |= {name}
            else:
                self._rejected = rejected
                return

    def _exchange(
        self,
        body: Body,
        headers: Mapping[str, str],
        deadline_s: float | None,
        timeout_s: float | None,
        cancellation: Cancellation,
    ) -> Generator[Piece, None, None]:
        url, parser = self.endpoint.url, PieceParser()
        at_s = time.monotonic()
        is_complete = False
        with _translating(url, self.name, timeout_s), _connect(url, deadline_s) as connection:
            # Keep the socket, because `connection.sock` becomes None if the server closes the
            # connection after the response.
            sock = connection.sock
            with (
                cancellation.calling(partial(shut_down, sock)),
                _post(connection, self.endpoint, self.api, body, headers, deadline_s) as response,
            ):
                for at_s, data in _read_parts(response, sock, deadline_s):
                    if data == DONE:
                        is_complete = True
                        break
                    yield from _parse(url, parser, _load_part(url, self.name, data), at_s)
                is_complete = is_complete or parser.is_finished or not _is_stream(response)
        if not is_complete:
            raise failures.connection_lost(url, "the response does not contain a finish reason")
        yield from parser.finish(at_s)


def send_once(
    endpoint: OpenAIEndpoint, api: Api, body: Body, timeout_s: float | None
) -> list[dict[str, Any]]:
    """Send a request and return all parts of the response.

    Raise `Rejected` if the server responds with an error status, `NoServer` if it cannot be
    reached, or `RequestFailed` if the request fails.
    """
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    url, model = endpoint.url, str(body["model"])
    with (
        _translating(url, model, timeout_s, "increase --timeout"),
        _connect(url, deadline_s) as connection,
    ):
        sock = connection.sock
        with _post(connection, endpoint, api, body, {}, deadline_s) as response:
            parts = _read_parts(response, sock, deadline_s)
            return [_load_part(url, model, data) for _, data in parts if data != DONE]


def get_json(endpoint: OpenAIEndpoint, path: str, timeout_s: float) -> dict[str, Any]:
    """Return the JSON object at the absolute path `path` on the server.

    Raise `Rejected` if the server responds with an error status, `NoServer` if it cannot be
    reached, or `RequestFailed` if the request fails.
    """
    deadline_s = time.monotonic() + timeout_s
    url = endpoint.url
    after_timeout = "read the server's log and run the command again"
    with (
        _translating(url, str(url), timeout_s, after_timeout),
        _connect(url, deadline_s) as connection,
    ):
        connection.sock.settimeout(find_remaining_s(deadline_s))
        connection.request("GET", path, headers=endpoint.headers)
        with connection.getresponse() as response:
            _check_status(response)
            return _load(url, response.read())


def _plan_headers(request: GenerateRequest) -> dict[str, str]:
    if not request.request_id:
        return {}
    if not is_header_value(request.request_id):
        raise BadInput(
            f"The request id {request.request_id!r} cannot be sent.",
            why="the id is sent in an HTTP header and can contain only printable ASCII characters "
            "except spaces",
            next_step="choose an id that contains only letters, digits, - and _",
        )
    return {"X-Request-Id": request.request_id}


@contextmanager
def _translating(
    url: BaseUrl,
    model: str,
    timeout_s: float | None,
    after_timeout: str = error_mapping.SHORTEN_REQUEST,
) -> Iterator[None]:
    """Convert HTTP library exceptions in the `with` block to `TllmError`.

    `after_timeout` is the next step if the request times out.
    """
    try:
        yield
    except TimeoutError as error:
        raise error_mapping.timed_out(model, timeout_s, after_timeout) from error
    except (OSError, IncompleteRead) as error:
        raise failures.connection_lost(url, describe_failure(error)) from error
    except HTTPException as error:
        raise failures.invalid_response(url, "the response is not valid HTTP") from error


@contextmanager
def _connect(url: BaseUrl, deadline_s: float | None) -> Iterator[HTTPConnection]:
    remaining_s = find_remaining_s(deadline_s)
    limit_s = min(CONNECT_TIMEOUT_S, remaining_s or CONNECT_TIMEOUT_S)
    connection: HTTPConnection
    if url.is_tls:
        context = ssl.create_default_context()
        connection = HTTPSConnection(url.host, url.port, timeout=limit_s, context=context)
    else:
        connection = HTTPConnection(url.host, url.port, timeout=limit_s)
    try:
        connection.connect()
    except OSError as error:
        raise failures.no_server(url, error) from error
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def _post(
    connection: HTTPConnection,
    endpoint: OpenAIEndpoint,
    api: Api,
    body: Body,
    headers: Mapping[str, str],
    deadline_s: float | None,
) -> Iterator[HTTPResponse]:
    connection.sock.settimeout(find_remaining_s(deadline_s))
    content = json.dumps(body).encode()
    path = endpoint.url.path_of(api)
    connection.request("POST", path, content, {**endpoint.headers, **headers})
    with connection.getresponse() as response:
        _check_status(response)
        yield response


def _check_status(response: HTTPResponse) -> None:
    if response.status != 200:
        content = response.read(LONGEST_ERROR_BYTES)
        raise Rejected(
            failures.parse_failure(
                response.status, response.reason, content, dict(response.headers)
            )
        )


def _is_stream(response: HTTPResponse) -> bool:
    """Return whether the response is an event stream.

    If a server ignores the `stream` field, the response is a single JSON object.
    """
    return response.headers.get_content_type() == "text/event-stream"


def _read_parts(
    response: HTTPResponse, sock: socket.socket, deadline_s: float | None
) -> Iterator[tuple[float, str]]:
    """Yield the arrival time and the text of each event, or of the whole response."""
    if _is_stream(response):
        yield from read_events(response, sock, deadline_s)
        return
    content = response.read()
    yield time.monotonic(), content.decode(errors="replace")


def _load_part(url: BaseUrl, model: str, data: str) -> dict[str, Any]:
    """Parse a part of a response as JSON.

    Raise `RequestFailed` if the part is not a JSON object or contains an error message.
    """
    body = _load(url, data)
    if (details := failures.find_error(body)) is not None:
        raise failures.request_failed(url, model, ApiFailure(0, *details))
    return body


def _parse(url: BaseUrl, parser: PieceParser, body: dict[str, Any], at_s: float) -> list[Piece]:
    try:
        return parser.parse(body, at_s)
    except ValueError as error:
        raise failures.invalid_response(url, f"part of the response is invalid: {error}") from error


def _load(url: BaseUrl, text: str | bytes) -> dict[str, Any]:
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise failures.invalid_response(url, f"the response is not valid JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise failures.invalid_response(url, "the response is not a JSON object")
    return loaded
