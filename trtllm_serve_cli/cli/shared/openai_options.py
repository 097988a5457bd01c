"""Declare the options for OpenAI-compatible servers and find the selected server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.option_fields import Option

if TYPE_CHECKING:
    from trtllm_serve_cli.client.transport.openai.endpoint import OpenAIEndpoint

API_KEY_VARIABLE = "OPENAI_API_KEY"
BASE_URL_VARIABLE = "OPENAI_BASE_URL"
_PANEL = "Target"

_API = "API to call with -i openai: `chat` (chat completions) or `completions`."
InferApiOption = Annotated[
    Literal["chat", "completions"] | None,
    Option(f"{_API} Default: `completions` with --raw, otherwise `chat`.", panel=_PANEL),
]
BenchApiOption = Annotated[
    Literal["chat", "completions"] | None,
    Option(
        f"{_API} Default: `chat` for the end-to-end workload, and `completions` for workloads "
        "that send token ids.",
        panel=_PANEL,
    ),
]
ApiKeyOption = Annotated[
    str | None,
    Option(
        "API key to send with -i openai. Default: the OPENAI_API_KEY environment variable. Prefer "
        "the environment variable, because other users of this machine can read command-line "
        "arguments.",
        metavar="KEY",
        panel=_PANEL,
    ),
]


def find_openai_endpoint(url: str | None, api_key: str | None) -> OpenAIEndpoint:
    """Return the OpenAI-compatible server that a command sends requests to.

    In order of precedence, the server's URL is `url`, the OPENAI_BASE_URL environment variable, or
    the URL of the only running gateway. The key is `api_key` or the OPENAI_API_KEY environment
    variable. Raise `BadInput` if the URL or the key is invalid. If no URL is set, also raise
    `BadInput` unless exactly one gateway is running.
    """
    from trtllm_serve_cli.client.transport.openai.endpoint import (
        OpenAIEndpoint,
        parse_api_key,
        parse_base_url,
    )

    text = url or os.environ.get(BASE_URL_VARIABLE)
    if not text:
        gateways = _list_gateways()
        if len(gateways) != 1:
            raise _url_required(gateways)
        text = gateways[0]
    key = parse_api_key(api_key or os.environ.get(API_KEY_VARIABLE))
    return OpenAIEndpoint(parse_base_url(text), key)


def _url_required(gateways: Sequence[str]) -> BadInput:
    """Return the error for a missing URL, with a next step that depends on `gateways`."""
    if gateways:
        running = "several servers with an OpenAI-compatible API are running"
        next_step = (
            f"pass the URL of one of these servers: {' or '.join(f'-u {url}' for url in gateways)}"
        )
    else:
        running = "no server with an OpenAI-compatible API is running"
        next_step = "run `tllm start`, or pass a server URL, for example -u http://127.0.0.1:9000"
    return BadInput(
        "-i openai requires a server URL.",
        why=f"neither -u nor the environment variable {BASE_URL_VARIABLE} is set, and {running}",
        next_step=next_step,
    )


def _list_gateways() -> list[str]:
    """Return the URLs of the running gateways."""
    from trtllm_serve_cli.launch.servers.running import list_servers
    from trtllm_serve_cli.paths import find_home

    return sorted(
        server.plan.gateway.url
        for server in list_servers(find_home())
        if server.is_running and server.plan.gateway is not None
    )


def check_usage(interface: str, api: str | None, api_key: str | None, tls_ca: Path | None) -> None:
    """Raise `BadParameter` if an option does not apply to the interface."""
    if tls_ca is not None and interface == "openai":
        raise typer.BadParameter(
            "--tls-ca applies only to gRPC. With -i openai, set the environment variable "
            "SSL_CERT_FILE instead.",
            param_hint="--tls-ca",
        )
    for flag, value in (("--api", api), ("--api-key", api_key)):
        if value is not None and interface != "openai":
            raise typer.BadParameter(
                f"{flag} requires -i openai. Add -i openai, or omit {flag}.",
                param_hint=flag,
            )
