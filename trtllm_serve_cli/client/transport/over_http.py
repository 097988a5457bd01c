"""Send requests to text models over HTTP with the generate_stream endpoint.

The endpoint responds with server-sent events. For non-streaming requests, it sends one event, or
one event per sequence. Unlike the generate endpoint, generate_stream cancels the request if the
client has disconnected. Triton detects the disconnection when it sends the next event.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead
from typing import Any, Literal
from urllib.parse import quote

from trtllm_serve_cli.client.address import split_address
from trtllm_serve_cli.client.endpoint import RESTRICTED_HEADER, Endpoint
from trtllm_serve_cli.client.generate import GenerateRequest, Piece
from trtllm_serve_cli.client.llmapi import returns_prompt
from trtllm_serve_cli.client.model_info import ModelInfo, find_latest, parse_model_config
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
from trtllm_serve_cli.client.transport.served_inputs import (
    plan_served_inputs,
    plan_served_parameters,
)
from trtllm_serve_cli.client.transport.tensors import RAW_TENSORS, parse_pieces
from trtllm_serve_cli.errors import BadInput


def stream_http(
    address: str,
    info: ModelInfo,
    request: GenerateRequest,
    timeout_s: float | None,
    cancellation: Cancellation,
) -> Generator[Piece, None, None]:
    """Yield the pieces as they arrive.

    Closing the generator closes the connection and, if the response is streamed, cancels the
    request on the server.
    """
    model = info.name
    body = _plan_body(info, request)
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    has_begun = False
    with (
        _connect(address, timeout_s) as connection,
        cancellation.calling(partial(shut_down, connection.sock)),
    ):
        try:
            for at_s, data in _post_for_events(connection, model, body, deadline_s):
                has_begun = True
                yield from _parse_event(address, info, request, data, at_s)
        except TimeoutError as error:
            raise error_mapping.timed_out(model, timeout_s) from error
        except (OSError, IncompleteRead) as error:
            lost = error_mapping.connection_lost if has_begun else error_mapping.no_server
            raise lost(address, describe_failure(error)) from error
        except HTTPException as error:
            raise error_mapping.invalid_response(
                address, "the response is not valid HTTP"
            ) from error


def fetch_info(endpoint: Endpoint, model: str, timeout_s: float) -> ModelInfo:
    """Return the settings in the model's configuration."""
    path = f"/v2/models/{quote(model, safe='')}/config"
    config = _fetch_json(endpoint.http, path, model, timeout_s)
    try:
        return parse_model_config(model, config)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise error_mapping.invalid_response(
            endpoint.http, "the response is not a model configuration"
        ) from error


def fetch_versions(endpoint: Endpoint, model: str, timeout_s: float) -> tuple[str, str]:
    """Return the server's version and the latest served version of the model."""
    server = _fetch_json(endpoint.http, "/v2", model, timeout_s)
    path = f"/v2/models/{quote(model, safe='')}"
    metadata = _fetch_json(endpoint.http, path, model, timeout_s)
    versions = metadata.get("versions", [])
    if not isinstance(versions, list) or not all(isinstance(each, str) for each in versions):
        raise error_mapping.invalid_response(
            endpoint.http, "the response does not contain a valid list of versions"
        )
    return str(server.get("version", "")), find_latest(versions)


def infer(
    endpoint: Endpoint, model: str, inputs: Mapping[str, str | int], timeout_s: float | None
) -> dict[str, list[Any]]:
    """Send a request with one row and return the values of each output, keyed by name."""
    tensors = [
        {
            "name": name,
            "datatype": "BYTES" if isinstance(value, str) else "INT32",
            "shape": [1, 1],
            "data": [value],
        }
        for name, value in inputs.items()
    ]
    path = f"/v2/models/{quote(model, safe='')}/infer"
    body = json.dumps({"inputs": tensors}).encode()
    content = _request(
        endpoint.http, "POST", path, model, timeout_s, body=body, after_timeout="increase --timeout"
    )
    response = _load_object(endpoint.http, content)
    try:
        return {each["name"]: list(each["data"]) for each in response["outputs"]}
    except (KeyError, TypeError) as error:
        raise error_mapping.invalid_response(
            endpoint.http, "the response does not contain valid outputs"
        ) from error


def _fetch_json(address: str, path: str, model: str, timeout_s: float) -> dict[str, Any]:
    """Return the JSON object at `path`. `model` is the model name for error messages."""
    return _load_object(address, _request(address, "GET", path, model, timeout_s))


def fetch_index_http(endpoint: Endpoint, timeout_s: float) -> list[dict[str, str]]:
    """Return the name, version, state and reason that Triton reports for each model."""
    path = "/v2/repository/index"
    content = _request(
        endpoint.http, "POST", path, endpoint.http, timeout_s, endpoint.restricted_token
    )
    try:
        return [{key: str(value) for key, value in each.items()} for each in json.loads(content)]
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise error_mapping.invalid_response(
            endpoint.http, "the response is not a list of models"
        ) from error


def change_model_http(
    endpoint: Endpoint, model: str, verb: Literal["load", "unload"], timeout_s: float
) -> None:
    """Load or unload a model.

    Triton acknowledges the request to unload a model before the model is unloaded.
    """
    path = f"/v2/repository/models/{quote(model, safe='')}/{verb}"
    _request(
        endpoint.http,
        "POST",
        path,
        model,
        timeout_s,
        endpoint.restricted_token,
        after_timeout="increase --timeout, or read the server's log with `tllm logs`",
    )


def _request(
    address: str,
    method: str,
    path: str,
    model: str,
    timeout_s: float | None,
    token: str | None = None,
    body: bytes | None = None,
    after_timeout: str = error_mapping.CHECK_SERVER,
) -> bytes:
    """Send an HTTP request and return the response body.

    `token` grants access to restricted APIs. `model` is the name of the model or server in error
    messages. `after_timeout` is the next step if the request times out.
    """
    headers = {RESTRICTED_HEADER: token} if token else {}
    with _connect(address, timeout_s) as connection:
        connection.sock.settimeout(timeout_s)
        try:
            connection.request(method, path, body, headers)
            with connection.getresponse() as response:
                content = response.read()
        except TimeoutError as error:
            raise error_mapping.timed_out(model, timeout_s, after_timeout) from error
        except (OSError, IncompleteRead) as error:
            raise error_mapping.no_server(address, describe_failure(error)) from error
        except HTTPException as error:
            raise error_mapping.invalid_response(
                address, "the response is not valid HTTP"
            ) from error
    if response.status != 200:
        raise error_mapping.refused(model, _read_error(response, content))
    return content


def _plan_body(info: ModelInfo, request: GenerateRequest) -> str:
    inputs = plan_served_inputs(info, request)
    if unsendable := RAW_TENSORS & inputs.keys():
        raise BadInput(
            f"{' and '.join(sorted(unsendable, reverse=True))} cannot be sent over HTTP.",
            why="Triton's generate_stream endpoint accepts only JSON, which does not support FP16",
            next_step="send the adapter once with -i grpc, then pass its task id with "
            "--lora-task-id",
        )
    body: dict[str, Any] = {name: each.value for name, each in inputs.items()}
    if request.request_id:
        body["id"] = request.request_id
    if parameters := plan_served_parameters(info, request):
        body["parameters"] = parameters
    return json.dumps(body)


@contextmanager
def _connect(address: str, timeout_s: float | None) -> Iterator[HTTPConnection]:
    limit_s = min(CONNECT_TIMEOUT_S, timeout_s or CONNECT_TIMEOUT_S)
    connection = HTTPConnection(*split_address(address), timeout=limit_s)
    try:
        connection.connect()
    except OSError as error:
        raise error_mapping.no_server(address, describe_failure(error)) from error
    try:
        yield connection
    finally:
        connection.close()


def _post_for_events(
    connection: HTTPConnection, model: str, body: str, deadline_s: float | None
) -> Iterator[tuple[float, str]]:
    """Send the request and yield the arrival time and the data of each event."""
    # Keep the socket, because `connection.sock` becomes None if the server closes the connection
    # after the response.
    sock = connection.sock
    sock.settimeout(find_remaining_s(deadline_s))
    path = f"/v2/models/{quote(model, safe='')}/generate_stream"
    connection.request("POST", path, body.encode(), {"Content-Type": "application/json"})
    with connection.getresponse() as response:
        if response.status != 200:
            content = response.read(LONGEST_ERROR_BYTES)
            raise error_mapping.refused(model, _read_error(response, content))
        yield from read_events(response, sock, deadline_s)


def _parse_event(
    address: str, info: ModelInfo, request: GenerateRequest, data: str, at_s: float
) -> list[Piece]:
    """Return the pieces of an event. Raise `RequestFailed` if the event is invalid or an error."""
    outputs = _read_event(address, info.name, data)
    has_prompt = returns_prompt(info, request)
    try:
        return parse_pieces(request, outputs, at_s, returns_prompt=has_prompt)
    except ValueError as error:
        raise error_mapping.invalid_response(address, f"an output is invalid: {error}") from error


def _read_event(address: str, model: str, data: str) -> dict[str, list[Any]]:
    event = _load_object(address, data)
    if "error" in event:
        raise error_mapping.refused(model, str(event["error"]))
    return {name: value if isinstance(value, list) else [value] for name, value in event.items()}


def _load_object(address: str, text: str | bytes) -> dict[str, Any]:
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise error_mapping.invalid_response(
            address, f"the response is not valid JSON: {error}"
        ) from error
    if not isinstance(loaded, dict):
        raise error_mapping.invalid_response(address, "the response is not a JSON object")
    return loaded


def _read_error(response: HTTPResponse, content: bytes) -> str:
    """Return the error message in a response body.

    The body is JSON, or an event that contains JSON. For any other body, return the HTTP status and
    the start of the body.
    """
    text = content.decode(errors="replace").strip()
    try:
        return str(json.loads(text.removeprefix("data:"))["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"HTTP {response.status} {response.reason}: {text[:200]}".rstrip(": ")
