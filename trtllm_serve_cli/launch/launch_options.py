"""Define the options for starting a server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from trtllm_serve_cli.choices import (
    COUNT,
    LARGEST,
    PORT,
    SECONDS,
    VERBOSITY,
    ContainerEngine,
    GenerationConfigSource,
    KeyPolicy,
    LaunchMode,
    LogFormat,
    ModelControlMode,
    RequestLogging,
    ToolParserName,
)
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.gateway.config import (
    DEFAULT_MAX_BODY_MIB,
    DEFAULT_MAX_IN_FLIGHT,
    DEFAULT_MAX_WAITING,
    DEFAULT_PORT,
    DEFAULT_RECEIVE_TIMEOUT_S,
    DEFAULT_SEND_TIMEOUT_S,
)
from trtllm_serve_cli.option_fields import Option, Within

# Default time, in seconds, that a stopping server waits for requests in flight.
DRAIN_S = 30
# Default hang timeout, in seconds. An engine with requests in flight is restarted if it does not
# complete a step within this time.
HANG_TIMEOUT_S = 120.0

_SERVER = "Server"
_PROCESSES = "Processes and containers"
_TRITON = "Triton"
_TELEMETRY = "Logs and traces"
_TLS = "TLS"
_OPENAI = "OpenAI-compatible API"


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """The options for `tllm start` and for the `launch` section in tllm.yaml.

    The options from `world_size` to `oversubscribe` have the same names as in TensorRT-LLM's launch
    script (`launch_triton_server.py`). The options in the `_TRITON` and `_TLS` panels have the same
    names as in Triton.
    """

    host: Annotated[
        str,
        Option(
            "IPv4 address to bind, or localhost. Triton has no authentication, so every client "
            "that can reach the address can use the server.",
            panel=_SERVER,
        ),
    ] = "127.0.0.1"
    http_port: Annotated[
        int,
        PORT,
        Option(
            "HTTP port. Changing this port shifts the default ports for gRPC, metrics and the "
            "OpenAI-compatible API by the same amount.",
            panel=_SERVER,
        ),
    ] = 8000
    grpc_port: Annotated[int, PORT, Option("gRPC port.", panel=_SERVER)] = 8001
    metrics_port: Annotated[int, PORT, Option("Metrics port.", panel=_SERVER)] = 8002
    timeout_s: Annotated[
        float,
        SECONDS,
        Option(
            "Maximum time to wait for the server to become ready, in seconds.",
            flags=("--timeout",),
            metavar="SECONDS",
            panel=_SERVER,
        ),
    ] = 300.0
    warmup: Annotated[
        bool,
        Option(
            "Send warm-up requests before reporting the server as ready: a short prompt, a long "
            "prompt, several streams and, if the server supports them, a chat completion and a "
            "request with a JSON schema.",
            flags=("--warmup/--no-warmup",),
            panel=_SERVER,
        ),
    ] = False
    hang_timeout_s: Annotated[
        float,
        Within(0),
        Option(
            "Maximum time between engine steps while requests are in flight, in seconds. If an "
            "engine exceeds the limit, the supervisor restarts the engine worker or, if "
            "necessary, the whole server. Other processes that do not respond are restarted after "
            "at most 30 s. With 0, hangs are only reported.",
            flags=("--hang-timeout",),
            metavar="SECONDS",
            panel=_SERVER,
        ),
    ] = HANG_TIMEOUT_S
    log_verbose: Annotated[
        int,
        VERBOSITY,
        Option(
            "Verbosity level of Triton's log. 0 disables verbose messages.",
            panel=_TRITON,
        ),
    ] = 0
    mode: Annotated[
        LaunchMode,
        Option(
            "How to run Triton. `local`: directly on this machine. `container`: in a container. "
            "`mpi`: with mpirun. `auto`: in a container if the local Triton cannot serve the "
            "models, otherwise directly on this machine.",
            panel=_PROCESSES,
        ),
    ] = "local"
    gpus: Annotated[
        str | None,
        Option(
            "Comma-separated list of GPUs to use, for example 0,1. Accepts GPU indices, GPU UUIDs "
            "and MIG device UUIDs. Default: all GPUs.",
            metavar="IDS",
            panel=_PROCESSES,
        ),
    ] = None
    image: Annotated[
        str | None,
        Option(
            "Container image to run with --mode container or auto. Default: the NVIDIA image that "
            "matches the engine.",
            metavar="IMAGE",
            panel=_PROCESSES,
        ),
    ] = None
    container_engine: Annotated[
        ContainerEngine | None,
        Option(
            "Container engine to use with --mode container or auto. Default: docker if it works, "
            "otherwise podman.",
            panel=_PROCESSES,
        ),
    ] = None
    world_size: Annotated[
        int | None,
        COUNT,
        Option(
            "Number of processes that mpirun starts. Default: the number of processes that the "
            "engines require.",
            metavar="N",
            panel=_PROCESSES,
        ),
    ] = None
    multi_model: Annotated[
        bool,
        Option(
            "Use orchestrator mode, in which Triton spawns the engine processes. With MPI, "
            "servers with several engine instances always use orchestrator mode.",
            flags=("--multi-model/--no-multi-model",),
            panel=_PROCESSES,
        ),
    ] = False
    disable_spawn_processes: Annotated[
        bool,
        Option(
            "Use orchestrator mode, but start the engine processes with mpirun. Requires the "
            "model parameter participant_ids.",
            flags=("--disable-spawn-processes/--no-disable-spawn-processes",),
            panel=_PROCESSES,
        ),
    ] = False
    oversubscribe: Annotated[
        bool,
        Option(
            "Allow mpirun to start more processes than the machine has cores.",
            flags=("--oversubscribe/--no-oversubscribe",),
            panel=_PROCESSES,
        ),
    ] = False
    hostfile: Annotated[
        Path | None,
        Option(
            "Host file for mpirun, with one node per line. The first node must be this machine.",
            metavar="FILE",
            panel=_PROCESSES,
        ),
    ] = None
    openai: Annotated[
        bool,
        Option(
            "Serve an OpenAI-compatible API alongside Triton. Default: yes.",
            flags=("--openai/--no-openai",),
            panel=_OPENAI,
        ),
    ] = True
    openai_host: Annotated[
        str | None,
        Option(
            "Address to bind for the OpenAI-compatible API. Default: the value of --host.",
            metavar="ADDRESS",
            panel=_OPENAI,
        ),
    ] = None
    openai_port: Annotated[
        int, PORT, Option("Port for the OpenAI-compatible API.", panel=_OPENAI)
    ] = DEFAULT_PORT
    openai_processes: Annotated[
        int | None,
        COUNT,
        Option(
            "Number of processes that serve the OpenAI-compatible API. Default: one per four CPU "
            "cores, but at least 1 and at most 4. With --runtime-lora-dir, the default is 1.",
            metavar="N",
            panel=_OPENAI,
        ),
    ] = None
    openai_auth: Annotated[
        KeyPolicy,
        Option(
            "Whether the OpenAI-compatible API requires an API key. `auto` requires a key once "
            "`tllm keys add` has created the first key.",
            panel=_OPENAI,
        ),
    ] = "auto"
    chat_template: Annotated[
        Path | None,
        Option(
            "Chat template file that overrides the models' chat templates.",
            metavar="FILE",
            panel=_OPENAI,
        ),
    ] = None
    generation_config: Annotated[
        GenerationConfigSource,
        Option(
            "Source of the default sampling parameters for the OpenAI-compatible API. `auto`: the "
            "model's generation_config.json. `off`: OpenAI's defaults.",
            panel=_OPENAI,
        ),
    ] = "auto"
    tool_parser: Annotated[
        ToolParserName | None,
        Option(
            "Parser for the tool calls that the models generate. Default: inferred from the chat "
            "template.",
            panel=_OPENAI,
        ),
    ] = None
    lora: Annotated[
        tuple[str, ...],
        Option(
            "LoRA adapter in FOLDER that the OpenAI-compatible API serves as the model NAME. If "
            "the server has several models, add the base model: MODEL:NAME=FOLDER. Repeatable. "
            "Default: only the adapters in the models' lora_prefetch_dir.",
            metavar="NAME=FOLDER",
            panel=_OPENAI,
        ),
    ] = ()
    runtime_lora_dir: Annotated[
        Path | None,
        Option(
            "Folder with LoRA adapters that clients of the OpenAI-compatible API can load at run "
            "time. Each adapter must be in a subfolder. With this option, the API runs in a "
            "single process. Default: clients cannot load adapters.",
            metavar="DIR",
            panel=_OPENAI,
        ),
    ] = None
    cors_origin: Annotated[
        tuple[str, ...],
        Option(
            "Allowed CORS origin for the OpenAI-compatible API, for example "
            "https://chat.example.com. Repeatable. Default: none.",
            metavar="ORIGIN",
            panel=_OPENAI,
        ),
    ] = ()
    openai_cert: Annotated[
        Path | None,
        Option(
            "TLS certificate file for the OpenAI-compatible API. Default: no TLS.",
            metavar="PEM",
            panel=_OPENAI,
        ),
    ] = None
    openai_key: Annotated[
        Path | None,
        Option(
            "Private key file for --openai-cert.",
            metavar="PEM",
            panel=_OPENAI,
        ),
    ] = None
    openai_max_body_mib: Annotated[
        int,
        COUNT,
        Option(
            "Maximum request body size for the OpenAI-compatible API, in MiB. Larger requests are "
            "rejected with status 413.",
            metavar="N",
            panel=_OPENAI,
        ),
    ] = DEFAULT_MAX_BODY_MIB
    openai_max_in_flight: Annotated[
        int,
        COUNT,
        Option(
            "Maximum number of concurrent requests to the OpenAI-compatible API. Further requests "
            "wait.",
            metavar="N",
            panel=_OPENAI,
        ),
    ] = DEFAULT_MAX_IN_FLIGHT
    openai_max_waiting: Annotated[
        int,
        Within(0, LARGEST),
        Option(
            "Maximum number of waiting requests to the OpenAI-compatible API. Further requests "
            "are rejected with status 429.",
            metavar="N",
            panel=_OPENAI,
        ),
    ] = DEFAULT_MAX_WAITING
    openai_receive_timeout_s: Annotated[
        float,
        SECONDS,
        Option(
            "Time limit, in seconds, for receiving the request headers. The same limit applies "
            "separately to the request body. Slower requests are rejected with status 408.",
            flags=("--openai-receive-timeout",),
            metavar="SECONDS",
            panel=_OPENAI,
        ),
    ] = DEFAULT_RECEIVE_TIMEOUT_S
    openai_send_timeout_s: Annotated[
        float,
        SECONDS,
        Option(
            "Timeout for clients that do not read their response stream, in seconds. Such a client "
            "is disconnected after at most twice this time.",
            flags=("--openai-send-timeout",),
            metavar="SECONDS",
            panel=_OPENAI,
        ),
    ] = DEFAULT_SEND_TIMEOUT_S
    model_control_mode: Annotated[
        ModelControlMode,
        Option(
            "How Triton loads models. `none`: load all models at startup. `explicit`: load all "
            "models, or those in --load-model, at startup, and allow `tllm load` and "
            "`tllm unload`. `poll`: load all models at startup, and reload models that change on "
            "disk.",
            panel=_TRITON,
        ),
    ] = "none"
    load_model: Annotated[
        tuple[str, ...],
        Option(
            "Model to load at startup with --model-control-mode explicit. Repeatable. Default: "
            "all models.",
            metavar="NAME",
            panel=_TRITON,
        ),
    ] = ()
    cache_config: Annotated[
        str | None,
        Option(
            "Configuration for Triton's response cache, for example local,size=1048576. Default: "
            "no cache.",
            metavar="CONFIG",
            panel=_TRITON,
        ),
    ] = None
    trace_config: Annotated[
        tuple[str, ...],
        Option(
            "Triton trace setting, for example level=TIMESTAMPS. Repeatable. Default: no tracing, "
            "unless --otlp-endpoint is set.",
            metavar="CONFIG",
            panel=_TRITON,
        ),
    ] = ()
    grpc_server_cert: Annotated[
        Path | None,
        Option(
            "TLS certificate file for the gRPC server. Default: no TLS.",
            metavar="PEM",
            panel=_TLS,
        ),
    ] = None
    grpc_server_key: Annotated[
        Path | None,
        Option(
            "Private key file for the TLS certificate. Required with --grpc-server-cert.",
            metavar="PEM",
            panel=_TLS,
        ),
    ] = None
    grpc_root_cert: Annotated[
        Path | None,
        Option(
            "CA certificate file for verifying gRPC clients, which must present a certificate "
            "signed by this CA. Requires --grpc-server-cert. Default: clients do not need a "
            "certificate.",
            metavar="PEM",
            panel=_TLS,
        ),
    ] = None
    triton_args: Annotated[
        tuple[str, ...],
        Option(
            "Names of the models to serve, as with -m. Arguments after -- are passed to "
            "tritonserver.",
            metavar="[NAME…] [-- OPTION…]",
            is_argument=True,
        ),
    ] = ()
    log_format: Annotated[
        LogFormat,
        Option(
            "Log format for the models that tllm renders and for the access log of the "
            "OpenAI-compatible API.",
            panel=_TELEMETRY,
        ),
    ] = "text"
    log_requests: Annotated[
        RequestLogging,
        Option(
            "What tllm's models log for each request. `no`: nothing. `yes`: one line. `prompts`: "
            "one line that includes the prompt.",
            panel=_TELEMETRY,
        ),
    ] = "no"
    otlp_endpoint: Annotated[
        str | None,
        Option(
            "URL of the OpenTelemetry collector (OTLP over HTTP) that receives spans from Triton, "
            "the models and the OpenAI-compatible API. Default: spans are not sent.",
            metavar="URL",
            panel=_TELEMETRY,
        ),
    ] = None


# The options that limit requests to the OpenAI-compatible API.
OPENAI_LIMITS = (
    "openai_max_body_mib", "openai_max_in_flight", "openai_max_waiting",
    "openai_receive_timeout_s", "openai_send_timeout_s",
)  # fmt: skip


def check_distinct(ports: Iterable[int | None]) -> None:
    """Raise `BadInput` if two of `ports` are equal. Ports that are None are not compared."""
    known = [port for port in ports if port is not None]
    if len(set(known)) < len(known):
        raise BadInput(
            f"The ports {', '.join(map(str, known))} are not distinct.",
            why="HTTP, gRPC, metrics and the OpenAI-compatible API each need a separate port",
            next_step="set --http-port, --grpc-port, --metrics-port and --openai-port to different "
            "ports",
        )
