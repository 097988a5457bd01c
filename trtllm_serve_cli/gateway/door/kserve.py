"""Forward KServe API requests (`/v2/…`) to Triton.

Triton's HTTP front end is designed for trusted clients: Triton 2.51 crashes on large bodies with
`chunked` transfer encoding and on deeply nested JSON. To prevent such crashes, the gateway reads
and checks the whole body and sends it with a content length. It forwards only inference, metadata
and health requests, so clients cannot use the APIs that load models or map shared memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.datastructures import State
from starlette.requests import Request
from starlette.responses import Response

from trtllm_serve_cli.client.model_info import CORE_MODEL, UPSTREAM_TEXT_MODELS, ModelInfo
from trtllm_serve_cli.gateway.access.admission import admit, check_model, process
from trtllm_serve_cli.gateway.access.call import Call, find_call
from trtllm_serve_cli.gateway.config import ServedModel
from trtllm_serve_cli.gateway.door.client_ids import ClientIds
from trtllm_serve_cli.gateway.door.inference_body import SIZE_HEADER, InferenceBody
from trtllm_serve_cli.gateway.door.stoppable import StoppableRequest, make_stoppable
from trtllm_serve_cli.gateway.errors import ApiError, unavailable
from trtllm_serve_cli.gateway.http import (
    EventStream,
    JsonResponse,
    read_body,
    run_while_connected,
)
from trtllm_serve_cli.gateway.model_registry import ModelRegistry
from trtllm_serve_cli.gateway.schema.body_errors import explain_invalid_json
from trtllm_serve_cli.runtime.telemetry.server_status import find_server_problem

if TYPE_CHECKING:
    import aiohttp

    from trtllm_serve_cli.gateway.door.triton_http import TritonHttp

_MODEL = r"/v2/models/(?P<model>[^/]+)(?:/versions/[0-9]+)?"
_ALLOWED: Mapping[str, re.Pattern[str]] = {
    "GET": re.compile(rf"/v2/?|/v2/health/(?:live|ready)|{_MODEL}(?:/(?:ready|config))?"),
    "POST": re.compile(rf"{_MODEL}/(?:infer|generate|generate_stream)"),
}
_READY = re.compile(rf"/v2/health/ready|{_MODEL}/ready")
_PASSED_HEADERS = (
    "accept",
    "content-type",
    "traceparent",
    "tracestate",
)
_STOP_TIMEOUT_S = 10.0
_MAX_DEPTH = 64
_MAX_STRING_CHARS = 1 << 20
_CHECKED = frozenset((str, list, dict))


async def pass_to_triton(request: Request) -> Response:
    """Check a request, forward it to Triton, and return Triton's response.

    Errors are returned in the format of Triton's API.
    """
    try:
        return await _pass(request)
    except ApiError as error:
        return JsonResponse(_encode_error(error), error.status, error.headers())


def _encode_error(error: ApiError) -> bytes:
    return msgspec.json.encode({"error": error.message})


async def _pass(request: Request) -> Response:
    config = request.app.state.config
    servers = find_servers(request.method, request.url.path, config.models)
    if "/models/" in request.url.path:
        servers = _select_model(request, servers)
    name = servers[0].name
    addresses = _list_addresses(servers)
    directory = config.server_directory
    if _READY.fullmatch(request.url.path) and (problem := find_server_problem(directory)):
        raise unavailable(f"The server does not respond: {problem}. Retry the request.")
    data = await read_body(request, config.max_body_bytes, config.receive_timeout_s)
    body = _split_body(data, request.headers.get(SIZE_HEADER))
    stoppable: StoppableRequest | None = None
    if request.method == "POST":
        _check_countable(request)
        _check_adapters(request, name)
        await admit(request, name)
        await process(request, partial(check_json, body.json))
        if (info := _find_stoppable(request, name)) is not None:
            is_generate = not request.url.path.endswith("/infer")
            make = partial(make_stoppable, body, is_generate=is_generate)
            stoppable = await process(request, partial(make, max_batch_size=info.max_batch_size))
    triton = await _open_client(request.app.state)
    ids: ClientIds = request.app.state.client_ids
    with contextlib.ExitStack() as running:
        if stoppable is None:
            response = await _forward(request, triton, addresses, body, running)
        else:
            held = running.enter_context(ids.hold(name, stoppable.request_id))
            response = await _forward(
                request, triton, addresses, stoppable.body, running, stoppable
            )
            if response is None and stoppable.stop is not None and not ids.is_shared(held):
                await _stop(request, triton, addresses, stoppable.stop)
    return response or Response(status_code=499)


async def _forward(
    request: Request,
    triton: TritonHttp,
    addresses: tuple[str, ...],
    body: InferenceBody,
    running: contextlib.ExitStack,
    stoppable: StoppableRequest | None = None,
) -> Response | None:
    """Send a request to Triton and return its response, or None if the client disconnects.

    If the response is a stream, close `running` at its end.
    """
    send = partial(triton.send, addresses, request.method, request.url.path)
    headers = {**_select_headers(request), **body.headers}
    response = await run_while_connected(request.receive, lambda: send(headers, body.data))
    if response is None:
        return None
    if response.content_type == "text/event-stream" and (
        stoppable is None or stoppable.stop is None
    ):
        events = _read_events(triton, response, find_call(request.scope), running.pop_all())
        return EventStream(events, request.app.state.config.send_timeout_s, response.status)
    content = await run_while_connected(request.receive, lambda: triton.read(response))
    if content is None:
        return None
    received = InferenceBody.of(content, response.headers.get(SIZE_HEADER))
    if stoppable is not None:
        received = stoppable.restore(received)
    content_type = {
        name: value for name, value in response.headers.items() if name.lower() == "content-type"
    }
    return Response(received.data, response.status, {**content_type, **received.headers})


def _select_headers(request: Request) -> dict[str, str]:
    """Return the headers that Triton receives."""
    headers = {name: request.headers[name] for name in _PASSED_HEADERS if name in request.headers}
    # Override aiohttp's default, which requests a compressed response. Clients could not decode a
    # compressed body, because the gateway does not forward the content-encoding header.
    return {**headers, "accept-encoding": "identity"}


def _find_stoppable(request: Request, name: str) -> ModelInfo | None:
    """Return the model of an inference request if tllm has rendered the model.

    Only these models have the input `stop`. Other models would run the request a second time.
    """
    models: ModelRegistry = request.app.state.models
    found = (each.info for each in models.list_loaded() if each.name == name)
    return next((info for info in found if "stop" in info.inputs), None)


async def _stop(
    request: Request, triton: TritonHttp, addresses: tuple[str, ...], stop: InferenceBody
) -> None:
    """Stop a request whose client has disconnected, with the request `stop`.

    Ignore errors: servers that do not run the request reject it, and it may have ended.
    """
    headers = {**_select_headers(request), **stop.headers}
    for address in addresses:
        with contextlib.suppress(ApiError, asyncio.TimeoutError):
            sent = triton.send((address,), "POST", request.url.path, headers, stop.data)
            (await asyncio.wait_for(sent, _STOP_TIMEOUT_S)).close()


async def _open_client(state: State) -> TritonHttp:
    """Return the application's HTTP client and create it for the first request.

    Most gateways never need the client, and importing its library takes 0.1 s and 10 MB of memory.
    """
    # Import the module in a thread, so that the import does not block running streams.
    module = await asyncio.to_thread(import_module, "trtllm_serve_cli.gateway.door.triton_http")
    if state.triton is None:
        state.triton = module.TritonHttp()
    client: TritonHttp = state.triton
    return client


def _check_countable(request: Request) -> None:
    """Raise `ApiError` (403) if the key has a tokens-per-minute limit.

    The gateway cannot enforce this limit here, because it cannot count tokens in requests to
    Triton's API.
    """
    key = find_call(request.scope).key
    if key is not None and key.tokens_per_minute is not None:
        raise ApiError(
            403,
            f"The API key '{key.name}' has a tokens-per-minute limit, which the gateway cannot "
            "enforce for Triton's API. Use the OpenAI API (/v1), or a key without this limit.",
        )


def _check_adapters(request: Request, name: str) -> None:
    """Raise `ApiError` (403) if the key may use the model `name`, but not all of its LoRA adapters.

    The gateway cannot check which adapter a request selects, because the name may be in a binary
    tensor. If the key is limited to some models, also raise `ApiError` until the gateway has loaded
    the model, because its adapters are unknown before.
    """
    key = find_call(request.scope).key
    if key is None or not key.models:
        return
    models: ModelRegistry = request.app.state.models
    models.find(name)
    adapters = (each.name for each in models.list_loaded() if each.root == name)
    if not all(map(key.may_use, adapters)):
        raise ApiError(
            403,
            f"The API key '{key.name}' does not allow all LoRA adapters of '{name}', which the "
            "gateway cannot enforce for Triton's API. Use the OpenAI API (/v1), or a key that "
            "allows the adapters.",
        )


def find_servers(
    method: str, path: str, models: tuple[ServedModel, ...]
) -> tuple[ServedModel, ...]:
    """Return the served models whose servers can receive the request.

    Raise `ApiError` with one of these statuses:
    - 404: the gateway does not forward the path, or does not serve the model in the path.
    - 405: the method is not allowed for the path.
    """
    pattern = _ALLOWED.get(method)
    match = pattern.fullmatch(path) if pattern is not None else None
    if match is None:
        if allowed := [name for name, each in _ALLOWED.items() if each.fullmatch(path)]:
            raise ApiError(405, f"The method {method} is not allowed for {path}. Use {allowed[0]}.")
        raise ApiError(
            404,
            f"The gateway does not forward {path} to Triton. Only inference, metadata and health "
            "requests are allowed.",
        )
    name = match.groupdict().get("model")
    if name is None:
        return models
    servers = tuple(each for each in models if name in list_triton_models(each.text_model))
    if not servers:
        raise ApiError(
            404,
            f"The gateway does not serve the Triton model '{name}'. Use the name of a served "
            "model in the URL.",
            code="model_not_found",
        )
    return servers


def _select_model(request: Request, servers: tuple[ServedModel, ...]) -> tuple[ServedModel, ...]:
    """Return the servers of the only model in `servers` that the request's API key may use.

    Raise `ApiError` (404) if the key may use none of the models. Raise `ApiError` (400) if it may
    use several of them, because the path does not determine the model.
    """
    key = find_call(request.scope).key
    allowed = tuple(each for each in servers if key is None or key.may_use(each.name))
    names = list(dict.fromkeys(each.name for each in allowed))
    if not names:
        check_model(request, servers[0].name)
    if len(names) > 1:
        raise ApiError(
            400,
            f"The name in {request.url.path} belongs to several served models: "
            f"{', '.join(names)}. Use the name of the text model of one of them in the URL.",
        )
    return allowed


def _list_addresses(servers: tuple[ServedModel, ...]) -> tuple[str, ...]:
    """Return the HTTP addresses of the servers.

    Raise `ApiError` (404) if no server has an HTTP address.
    """
    addresses = tuple(dict.fromkeys(each.endpoint.http for each in servers if each.endpoint.http))
    if not addresses:
        raise ApiError(
            404,
            "Triton's API (/v2) is not available, because the gateway is configured only with the "
            "server's gRPC address. Ask the operator to pass the server's HTTP address to "
            "`tllm gateway`, for example "
            f"`-u http://{servers[0].endpoint.grpc.rpartition(':')[0]}:8000`.",
        )
    return addresses


def list_triton_models(text_model: str) -> set[str]:
    """Return the Triton models that clients of `text_model` may use.

    The set contains `text_model`, the core model that it calls, and NVIDIA's text models.
    """
    info = ModelInfo(text_model)
    return {text_model, *map(info.name_of, (CORE_MODEL, *UPSTREAM_TEXT_MODELS))}


def _split_body(data: bytes, json_size: str | None) -> InferenceBody:
    """Split the body of a request. Raise `ApiError` (400) if `json_size` is not a valid size."""
    try:
        return InferenceBody.of(data, json_size)
    except ValueError as error:
        raise ApiError(
            400,
            f"The {SIZE_HEADER} header is invalid. Set it to the size in bytes of the JSON part of "
            "the request body.",
        ) from error


def check_json(body: bytes) -> None:
    """Check the JSON part of a request body.

    Raise `ApiError` (400) if it is invalid, is nested too deeply, or contains a string that is too
    long.
    """
    try:
        value = msgspec.json.decode(body)
    except RecursionError as error:
        raise _too_deep() from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise explain_invalid_json(body, error) from error
    if type(value) in _CHECKED:
        _check_value(value)


def _check_value(value: Any) -> None:
    """Raise `ApiError` (400) if the body is nested too deeply or a string is too long.

    The check is iterative, because a recursive check takes several times as long.
    """
    level = [value]
    for _ in range(_MAX_DEPTH + 1):
        if any(type(each) is str and len(each) > _MAX_STRING_CHARS for each in level):
            raise ApiError(
                400,
                "The request body contains a string with more than "
                f"{_MAX_STRING_CHARS} characters. Shorten the string.",
            )
        containers = [each for each in level if type(each) is not str]
        if not containers:
            return
        level = [
            item
            for each in containers
            for item in (each if type(each) is list else (*each, *each.values()))
            if type(item) in _CHECKED
        ]
    raise _too_deep()


def _too_deep() -> ApiError:
    return ApiError(
        400,
        f"The JSON in the request body has more than {_MAX_DEPTH} nesting levels. Reduce the "
        "nesting depth.",
    )


async def _read_events(
    triton: TritonHttp,
    response: aiohttp.ClientResponse,
    call: Call,
    running: contextlib.ExitStack,
) -> AsyncGenerator[bytes, None]:
    try:
        async for chunk in triton.read_chunks(response):
            yield chunk
    except ApiError as error:
        # The status has already been sent, so send the error as an event, in Triton's format. The
        # empty line ends a partially sent event.
        call.late_error = error.status
        yield b"\n\ndata: " + _encode_error(error) + b"\n\n"
    finally:
        # Closing the connection cancels the request in Triton.
        response.close()
        running.close()
