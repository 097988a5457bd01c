"""Plan the OpenAI-compatible gateway for a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trtllm_serve_cli.client.address import join_address
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.gateway.access.keys import read_keys
from trtllm_serve_cli.gateway.config import MIB, GatewayConfig, ServedModel
from trtllm_serve_cli.launch.launch_options import DRAIN_S, LaunchOptions
from trtllm_serve_cli.launch.planning.adapter_plan import check_runtime_folder, plan_adapters
from trtllm_serve_cli.launch.triton.telemetry_env import read_trace_rate, traces_url
from trtllm_serve_cli.launch.triton.tls import load_certificate
from trtllm_serve_cli.repository.model.store import ImportedModel


def plan_gateway(
    options: LaunchOptions,
    models: Mapping[str, ImportedModel],
    endpoints: Sequence[Endpoint],
    directory: Path,
    keys_file: Path | None = None,
    num_cores: int = 1,
) -> GatewayConfig | None:
    """Return the configuration of a server's gateway, or None if `options` disable the gateway.

    `models` maps the names of Triton's text models to imported models. `endpoints` are the
    endpoints of the server and its replicas. `directory` is the server's state folder. `keys_file`,
    `num_cores` and the errors are the same as for `configure_gateway`.
    """
    if not options.openai:
        return None
    served = tuple(
        ServedModel(model.name, text_model, endpoint, str(model.engine_path), model.created_at)
        for text_model, model in models.items()
        for endpoint in endpoints
    )
    return configure_gateway(options, served, directory, keys_file=keys_file, num_cores=num_cores)


def configure_gateway(
    options: LaunchOptions,
    models: tuple[ServedModel, ...],
    directory: Path | None = None,
    *,
    keys_file: Path | None,
    num_cores: int,
) -> GatewayConfig:
    """Return the configuration of a gateway for `models`.

    `directory` is the server's state folder, or None if tllm did not start the server. `keys_file`
    is the file with the API keys, or None. `num_cores` determines the default number of processes.

    Raise `BadInput` if an option is not valid, for example if the chat template cannot be read.
    """
    certificate, key = _check_tls(options.openai_cert, options.openai_key)
    return GatewayConfig(
        models=models,
        host=options.openai_host or options.host,
        port=options.openai_port,
        num_processes=_choose_num_processes(options, num_cores),
        server_directory=str(directory) if directory else None,
        chat_template=read_chat_template(options.chat_template),
        generation_config=options.generation_config,
        tool_parser=options.tool_parser,
        adapters=plan_adapters(options.lora, [each.name for each in models]),
        runtime_lora_dir=check_runtime_folder(options),
        keys_file=str(keys_file) if keys_file else None,
        key_policy=options.openai_auth,
        cors_origins=options.cors_origin,
        tls_certificate=certificate,
        tls_key=key,
        max_body_bytes=options.openai_max_body_mib * MIB,
        max_in_flight=options.openai_max_in_flight,
        max_waiting=options.openai_max_waiting,
        receive_timeout_s=options.openai_receive_timeout_s,
        send_timeout_s=options.openai_send_timeout_s,
        drain_s=DRAIN_S,
        log_format=options.log_format,
        otlp_traces=traces_url(options.otlp_endpoint) if options.otlp_endpoint else None,
        trace_rate=read_trace_rate(options.trace_config),
    )


def _choose_num_processes(options: LaunchOptions, num_cores: int) -> int:
    # If clients can load adapters, default to one process, because an adapter that a client loads
    # is available only in the process that handled the request.
    default = 1 if options.runtime_lora_dir else choose_num_processes(num_cores)
    return options.openai_processes or default


def choose_num_processes(num_cores: int) -> int:
    """Return the number of gateway processes: one per four cores, but at least 1 and at most 4.

    Source: `make gpu-check` on an H200 with 16 cores. At 22,000 tokens/s, the 99th percentile of
    the inter-token latency was 68 ms with one process and 16 ms with four.
    """
    return min(max(1, num_cores // 4), 4)


def describe_missing_keys(config: GatewayConfig) -> str:
    """Return a warning if the gateway rejects all requests or is open to the network, or "".

    The gateway rejects all requests if an API key is required but no key exists. The gateway is
    open to the network if no key is required and its host is not a loopback address. Raise
    `BadInput` if the file with the keys cannot be read.
    """
    file = Path(config.keys_file) if config.keys_file else None
    is_open = config.key_policy == "off" or file is None or not file.exists()
    is_required = config.key_policy == "on" or not is_open
    if is_required and not (file and read_keys(file)):
        return (
            "The OpenAI-compatible API rejects all requests, because no API key exists. "
            "Next: run `tllm keys add NAME`"
        )
    if not is_required and config.host not in ("127.0.0.1", "localhost", "::1"):
        return (
            "The OpenAI-compatible API does not require an API key, so anyone who can connect to "
            f"{join_address(config.host, config.port)} can use the API. "
            "Next: run `tllm keys add NAME`"
        )
    return ""


def read_chat_template(file: Path | None) -> str | None:
    """Return the chat template in `file`, or None if `file` is None.

    Raise `BadInput` if the file cannot be read or is not UTF-8 text.
    """
    if file is None:
        return None
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"The chat template {file} cannot be read.",
            why=getattr(error, "strerror", None) or "the file is not UTF-8 text",
            next_step="pass the path of a Jinja template with --chat-template FILE",
        ) from error


def _check_tls(certificate: Path | None, key: Path | None) -> tuple[str | None, str | None]:
    """Return the absolute paths of the TLS files, or `(None, None)` if neither option is set.

    Raise `BadInput` if only one option is set, or if the files cannot be used.
    """
    if certificate is key is None:
        return None, None
    if certificate is None or key is None:
        raise BadInput(
            "TLS for the OpenAI-compatible API requires a certificate and a private key.",
            next_step="pass both --openai-cert and --openai-key",
        )
    load_certificate(certificate, key, ("--openai-cert", "--openai-key"))
    return str(certificate.absolute()), str(key.absolute())
