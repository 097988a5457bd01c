"""Declare the options of `tllm infer` that are not request fields."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from trtllm_serve_cli.cli.shared.openai_options import ApiKeyOption, InferApiOption
from trtllm_serve_cli.cli.shared.target import TlsCaOption
from trtllm_serve_cli.client.generate import Interface
from trtllm_serve_cli.option_fields import Option, Within

_FILE_OR_TEXT = "FILE|TEXT"
_TARGET = "Target"

PromptArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PROMPT]",
        help="Prompt to send. `-` reads the prompt from stdin. Without PROMPT, the prompt is "
        "read from stdin, or a conversation starts if stdin is a terminal.",
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--model",
        metavar="NAME",
        help="Model name: an imported model, as shown by `tllm list`, or a Triton model on the "
        "running server, such as `ensemble`. Default: the server's only model. With -u and "
        "without -i openai, the default is tensorrt_llm_bls.",
        rich_help_panel=_TARGET,
    ),
]


@dataclass(frozen=True, slots=True)
class InferOptions:
    """The `tllm infer` options for the server, the prompt, the output and guided decoding."""

    interface: Annotated[
        Interface,
        Option(
            "Protocol for the request. Use `openai` for any OpenAI-compatible server.",
            flags=("-i", "--interface"),
            panel=_TARGET,
        ),
    ] = "grpc"
    url: Annotated[
        str | None,
        Option(
            "Server address: HOST:PORT for gRPC or HTTP, grpcs://HOST:PORT for gRPC with TLS, or "
            "the base URL with -i openai, for example http://127.0.0.1:8000/v1. Default: the only "
            "running server. With -i openai, the OPENAI_BASE_URL environment variable overrides "
            "the default.",
            flags=("-u", "--url"),
            metavar="HOST:PORT|URL",
            panel=_TARGET,
        ),
    ] = None
    api: InferApiOption = None
    api_key: ApiKeyOption = None
    tls_ca: TlsCaOption = None
    no_server: Annotated[
        bool,
        Option(
            ("Run the request without a server. The engine is loaded each time the command runs."),
            flags=("--no-server",),
            panel=_TARGET,
        ),
    ] = False
    timeout: Annotated[
        float | None,
        Within(0.001),
        Option(
            (
                "Request timeout, in seconds. Requests that exceed the timeout are cancelled. "
                "Default: no timeout."
            ),
            metavar="SECONDS",
        ),
    ] = None
    chat: Annotated[
        bool | None,
        Option(
            "Apply the model's chat template, or send the prompt unchanged. Default: apply the "
            "template if the model has one. With -i openai and --api chat, the server applies the "
            "template.",
            flags=("--chat/--raw",),
        ),
    ] = None
    system: Annotated[
        str | None,
        Option("System prompt for the chat template. Default: no system prompt.", metavar="TEXT"),
    ] = None
    batch: Annotated[
        Path | None,
        Option(
            (
                "File with one request per line: either only prompts, or only JSON objects with "
                "fields such as prompt and max_tokens. `-` reads the lines from stdin."
            ),
            metavar="FILE",
        ),
    ] = None
    batch_inputs: Annotated[
        bool,
        Option(
            "Send all prompts of the --batch file in a single request (gRPC only). All lines "
            "must have the same options.",
            flags=("--batch-inputs",),
        ),
    ] = False
    stream: Annotated[
        bool, Option("Print the response as it is generated.", flags=("--stream/--no-stream",))
    ] = True
    json_schema: Annotated[
        str | None,
        Option(
            "JSON schema that the response must match, as a file or inline.", metavar=_FILE_OR_TEXT
        ),
    ] = None
    regex: Annotated[
        str | None, Option("Regular expression that the response must match.", metavar="TEXT")
    ] = None
    grammar: Annotated[
        str | None,
        Option(
            "EBNF grammar that the response must match, as a file or inline.",
            metavar=_FILE_OR_TEXT,
        ),
    ] = None
    structural_tag: Annotated[
        str | None,
        Option(
            "Structural tag (a JSON object) that the response must match, as a file or inline.",
            metavar=_FILE_OR_TEXT,
        ),
    ] = None
    guide: Annotated[
        Literal["json"] | None,
        Option(
            "Require a valid JSON response. The only supported value is `json`.",
            metavar="json",
        ),
    ] = None
    lora_dir: Annotated[
        Path | None,
        Option(
            "LoRA adapter folder to send with the request (gRPC only): a PEFT adapter, or the "
            "output of `tllm lora convert`. Requires --lora-task-id.",
            metavar="DIR",
        ),
    ] = None
    context_logits: Annotated[
        Path | None,
        Option(
            "Write the prompt logits to this NumPy file, with shape [tokens, vocabulary] (gRPC "
            "only).",
            metavar="FILE",
        ),
    ] = None
    generation_logits: Annotated[
        Path | None,
        Option(
            "Write the response logits to this NumPy file, with shape [sequences, tokens, "
            "vocabulary] (gRPC only).",
            metavar="FILE",
        ),
    ] = None
    show_tokens: Annotated[
        bool,
        Option(
            "Print the token ids of the prompt and the response (gRPC only). On a server, the "
            "request is sent to the preprocessing, tensorrt_llm and postprocessing models in turn.",
            flags=("--show-tokens",),
        ),
    ] = False
    request_id: Annotated[
        str | None,
        Option(
            "Request id for the server's log and traces. Default: a random id.",
            metavar="ID",
        ),
    ] = None
