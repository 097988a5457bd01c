"""`tllm gateway`: serve an OpenAI-compatible API for existing Triton servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trtllm_serve_cli.choices import PORT
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.completion import addresses
from trtllm_serve_cli.cli.shared.option_signature import OptionValues, takes_options
from trtllm_serve_cli.cli.shared.options import DryRunOption
from trtllm_serve_cli.cli.shared.target import TlsCaOption, choose_tls
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.launch_options import OPENAI_LIMITS, LaunchOptions
from trtllm_serve_cli.option_fields import option_fields

if TYPE_CHECKING:
    from trtllm_serve_cli.client.endpoint import Endpoint

_DEFAULT_TEXT_MODEL = "ensemble"
_DEFAULT_URLS = ("127.0.0.1:8001", "http://127.0.0.1:8000")
_HTTP, _GRPCS = "http://", "grpcs://"
# The options of `tllm start` that `tllm gateway` also accepts.
_API = (
    "chat_template", "generation_config", "tool_parser", "lora", "runtime_lora_dir", "cors_origin",
    "openai_cert", "openai_key", *OPENAI_LIMITS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TritonOptions:
    """Options for the connections to Triton."""

    tls_ca: TlsCaOption = None


@takes_options(api=option_fields(LaunchOptions, *_API), triton=option_fields(TritonOptions))
def gateway(
    *,
    url: Annotated[
        list[str] | None,
        typer.Option(
            "-u",
            "--url",
            metavar="HOST:PORT|URL",
            help="gRPC address of a Triton server, or grpcs://HOST:PORT for gRPC with TLS. Repeat "
            "the option to distribute requests across several servers. To also serve Triton's API "
            "(/v2), add the servers' HTTP addresses as http://HOST:PORT. Default: 127.0.0.1:8001 "
            "and http://127.0.0.1:8000.",
            autocompletion=addresses("grpc"),
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "-m",
            "--model",
            metavar="NAME[=MODEL]",
            help="Model name that clients use. Add =MODEL if the text model in Triton has a "
            "different name. Repeatable. Default: ensemble.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to bind.")] = "127.0.0.1",
    port: Annotated[int, PORT, typer.Option(help="Port for the OpenAI-compatible API.")] = 9000,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Tokenizer folder on this machine for all models. Default: the tokenizer folder "
            "in each model's Triton configuration.",
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Number of processes that serve the API. Default: one per four CPU cores, but at "
            "least 1 and at most 4. With --runtime-lora-dir, the default is 1.",
        ),
    ] = None,
    auth: Annotated[
        Literal["auto", "on", "off"],
        typer.Option(
            help="Whether the API requires an API key. `auto` requires a key once `tllm keys add` "
            "has created the first key."
        ),
    ] = "auto",
    api: OptionValues,
    triton: OptionValues,
    log_format: Annotated[
        Literal["text", "json"],
        typer.Option(
            help="Format of the access log, which has one line per request, except for successful "
            "health checks and metrics requests."
        ),
    ] = "text",
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="URL of the OpenTelemetry collector (OTLP over HTTP) that receives spans from "
            "the gateway. Default: spans are not sent.",
        ),
    ] = None,
    trace_rate: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Trace one in N of the requests that do not have a traceparent header.",
        ),
    ] = 1,
    dry_run: DryRunOption = False,
) -> None:
    """Serve an OpenAI-compatible API for existing Triton servers.

    `tllm start` already serves this API for the server that it starts. Use `tllm gateway` for
    servers on other machines, or for servers that tllm did not start.

    Example:  tllm gateway -u gpu1:8001 -u gpu2:8001 -m llama=ensemble
    """
    from trtllm_serve_cli.gateway.config import ServedModel
    from trtllm_serve_cli.launch.planning.gateway_plan import (
        configure_gateway,
        describe_missing_keys,
    )
    from trtllm_serve_cli.paths import find_home
    from trtllm_serve_cli.processes import count_cores

    endpoints = plan_endpoints(url or _DEFAULT_URLS, triton.get("tls_ca"))
    options = LaunchOptions(
        openai_host=host,
        openai_port=port,
        openai_processes=processes,
        openai_auth=auth,
        log_format=log_format,
        otlp_endpoint=otlp_endpoint,
        trace_config=(f"rate={trace_rate}",),
        **api,
    )
    models = tuple(
        ServedModel(name, text_model, endpoint)
        for name, text_model in parse_models(model or (_DEFAULT_TEXT_MODEL,)).items()
        for endpoint in endpoints
    )
    config = replace(
        configure_gateway(options, models, keys_file=find_home().keys, num_cores=count_cores()),
        tokenizer_dir=tokenizer,
    )
    if dry_run:
        print(config.to_json())
        return
    from trtllm_serve_cli.gateway.process_pool import serve_as_configured
    from trtllm_serve_cli.launch.supervisor.ports import check_ports

    check_ports(host, {"OpenAI": port}, port_option="--port")
    check_interfaces(endpoints)
    if warning := describe_missing_keys(config):
        output.notify(warning)
    output.notify(f"Serving the OpenAI-compatible API on {config.url}/v1. Press Ctrl-C to stop.")
    raise typer.Exit(serve_as_configured(config))


def parse_models(words: Iterable[str]) -> dict[str, str]:
    """Return the Triton text model for each served name, from words in the form NAME[=MODEL].

    Raise `BadInput` if a word is malformed, or if a name has several models. The gateway would
    distribute the requests for that name among different models.
    """
    models: dict[str, str] = {}
    for word in words:
        name, equals, text_model = word.partition("=")
        if not name or (equals and not text_model):
            raise BadInput(
                f"{word!r} does not have the form NAME[=MODEL].",
                next_step="pass a name and a text model, for example "
                f"-m llama={_DEFAULT_TEXT_MODEL}",
            )
        text_model = text_model or name
        if models.setdefault(name, text_model) != text_model:
            raise BadInput(
                f"The name {name!r} cannot stand for several models.",
                why=f"-m selects the text models {models[name]} and {text_model} for it",
                next_step="pass a different name for each model",
            )
    return models


def plan_endpoints(urls: Sequence[str], tls_ca: Path | None) -> list[Endpoint]:
    """Return an endpoint for each gRPC address in `urls`.

    If `urls` contains fewer HTTP than gRPC addresses, the HTTP addresses of the last endpoints are
    "". `tls_ca` is the CA certificate for servers with TLS. Raise `BadInput` if an address is
    invalid, if `urls` contains more HTTP than gRPC addresses, or if `tls_ca` cannot be used.
    """
    from trtllm_serve_cli.client.address import parse_address
    from trtllm_serve_cli.client.endpoint import Endpoint
    from trtllm_serve_cli.launch.triton.tls import check_ca

    grpc = [each for each in urls if not each.startswith(_HTTP)]
    http = [parse_address(each) for each in urls if each.startswith(_HTTP)]
    if len(http) > len(grpc):
        raise BadInput(
            "The gateway requires the gRPC address of each server.",
            why=f"-u specifies {len(http)} HTTP and {len(grpc)} gRPC addresses, but requests for "
            "the OpenAI-compatible API are sent over gRPC",
            next_step="add the gRPC address of each server, for example "
            f"-u {http[-1].rpartition(':')[0]}:8001",
        )
    ca = {each: tls_ca for each in grpc if each.startswith(_GRPCS)}
    if ca and tls_ca is not None:
        check_ca(tls_ca, "--tls-ca")
    elif not ca:
        choose_tls(None, tls_ca)
    return [
        Endpoint(parse_address(url), address, metrics="", tls=choose_tls(url, ca.get(url)))
        for url, address in zip_longest(grpc, http, fillvalue="")
    ]


def check_interfaces(endpoints: Sequence[Endpoint]) -> None:
    """Raise `BadInput` if a port serves the wrong interface or requires TLS.

    Skip ports that do not respond, and the gRPC ports of endpoints with TLS.
    """
    from concurrent.futures import ThreadPoolExecutor

    from trtllm_serve_cli.client.transport.port_probe import probe_interface

    expected = {each.grpc: "gRPC" for each in endpoints if each.tls is None}
    expected |= {each.http: "HTTP" for each in endpoints if each.http}
    with ThreadPoolExecutor(max_workers=len(endpoints) * 2) as pool:
        try:
            found = list(pool.map(probe_interface, expected))
        except BadInput as error:
            raise BadInput(
                error.what,
                why=error.why,
                next_step="pass -u grpcs://HOST:PORT, and add --tls-ca FILE if the server's CA "
                "is private",
            ) from error
    for (address, title), served in zip(expected.items(), found, strict=True):
        if served is not None and served != title.lower():
            raise BadInput(
                f"{address} serves {'HTTP' if title == 'gRPC' else 'gRPC'}, not {title}.",
                why="the gateway sends requests for the OpenAI-compatible API over gRPC, and "
                "requests for Triton's API (/v2) over HTTP",
                next_step=f"pass the gRPC address as -u HOST:PORT, and the HTTP address as -u "
                f"{_HTTP}HOST:PORT",
            )
