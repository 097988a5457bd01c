"""`tllm gateway`: serve the OpenAI-compatible API for servers that run elsewhere."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from trtllm_serve_cli.choices import PORT, ToolParserName
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.completion import addresses
from trtllm_serve_cli.cli.shared.options import DryRunOption

_DEFAULT_TEXT_MODEL = "ensemble"


def gateway(
    *,
    url: Annotated[
        list[str] | None,
        typer.Option(
            "-u",
            "--url",
            metavar="HOST:PORT",
            help="gRPC address of a Triton server. Repeat the option to distribute the requests "
            "over several servers. Default: 127.0.0.1:8001.",
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
    port: Annotated[
        int, PORT, typer.Option(help="Port to bind for the OpenAI-compatible API.")
    ] = 9000,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Folder on this machine with a tokenizer to use for all models. Default: for "
            "each model, the folder that the model's configuration in Triton specifies.",
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Number of processes that serve the API. Default: one per four processor cores, "
            "at most 4.",
        ),
    ] = None,
    auth: Annotated[
        Literal["auto", "on", "off"],
        typer.Option(
            help="Whether the API requires an API key. With auto, a key is required as soon as "
            "`tllm keys add` has created the first one."
        ),
    ] = "auto",
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Origin of web pages that may use the API, for example https://chat.example.com. "
            "Repeatable. Default: none.",
        ),
    ] = None,
    log_format: Annotated[
        Literal["text", "json"],
        typer.Option(help="Format of the access log, which has one line per request."),
    ] = "text",
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="URL of the OpenTelemetry collector that receives spans over HTTP. Default: no "
            "spans.",
        ),
    ] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="File with a chat template that replaces the models' templates. Default: the "
            "models' templates.",
        ),
    ] = None,
    generation_config: Annotated[
        Literal["auto", "off"],
        typer.Option(
            help="Source of the default sampling parameters. With auto, they are read from "
            "generation_config.json in the tokenizer's folder. With off, OpenAI's "
            "defaults are used."
        ),
    ] = "auto",
    tool_parser: Annotated[
        ToolParserName | None,
        typer.Option(
            help="Format of the models' tool calls. Default: detected from the chat template.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Serve an OpenAI-compatible API for Triton servers, until Ctrl-C or SIGTERM.

    `tllm start` already serves this API for the server that it starts. Use `tllm gateway` for
    servers on other machines, or for servers that tllm did not start.

    Example:  tllm gateway -u gpu1:8001 -u gpu2:8001 -m llama=ensemble
    """
    from pathlib import Path

    from trtllm_serve_cli.client.address import parse_address
    from trtllm_serve_cli.client.endpoint import Endpoint
    from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel
    from trtllm_serve_cli.launch.planning.gateway_plan import (
        choose_num_processes,
        describe_missing_keys,
        read_chat_template,
    )
    from trtllm_serve_cli.launch.triton.telemetry_env import traces_url
    from trtllm_serve_cli.paths import find_home
    from trtllm_serve_cli.processes import count_cores

    addresses = [parse_address(each) for each in url or ("127.0.0.1:8001",)]
    names = [each.partition("=") for each in model or (_DEFAULT_TEXT_MODEL,)]
    config = GatewayConfig(
        models=tuple(
            ServedModel(name, text_model or name, Endpoint(grpc=address), tokenizer)
            for name, _, text_model in names
            for address in addresses
        ),
        host=host,
        port=port,
        num_processes=processes or choose_num_processes(count_cores()),
        keys_file=str(find_home().keys),
        key_policy=auth,
        cors_origins=tuple(cors_origin or ()),
        log_format=log_format,
        chat_template=read_chat_template(Path(chat_template) if chat_template else None),
        generation_config=generation_config,
        tool_parser=tool_parser,
        otlp_traces=traces_url(otlp_endpoint) if otlp_endpoint else None,
    )
    if dry_run:
        print(config.to_json())
        return
    from trtllm_serve_cli.gateway.process_pool import serve_as_configured
    from trtllm_serve_cli.launch.supervisor.ports import check_ports

    check_ports(host, {"gateway": port}, port_option="--port")
    if warning := describe_missing_keys(config):
        output.notify(warning)
    output.notify(f"OpenAI-compatible API on {config.url}/v1; Ctrl-C stops it.")
    raise typer.Exit(serve_as_configured(config))
