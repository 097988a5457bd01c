"""The options of `tllm infer` that are not fields of the request itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from trtllm_serve_cli.client.generate import Interface
from trtllm_serve_cli.option_fields import Option, Within

_FILE_OR_TEXT = "FILE|TEXT"

PromptArgument = Annotated[
    str | None,
    typer.Argument(metavar="[PROMPT]", help="The prompt; `-` reads it from stdin."),
]


@dataclass(frozen=True, slots=True)
class InferOptions:
    """Which server, how the prompt is made and the response printed, and what guides it."""

    interface: Annotated[
        Interface, Option("Protocol of the request.", flags=("-i", "--interface"))
    ] = "grpc"
    url: Annotated[
        str | None,
        Option(
            "Another server: its gRPC address, or with -i http its HTTP address.",
            flags=("-u", "--url"),
            metavar="HOST:PORT",
        ),
    ] = None
    timeout: Annotated[
        float | None,
        Within(0.001),
        Option("Cancel the request after this time.", metavar="SECONDS"),
    ] = None
    chat: Annotated[
        bool | None,
        Option(
            "Apply the model's chat template to the prompt, or send it as it is. Default: apply "
            "the template if the model has one.",
            flags=("--chat/--raw",),
        ),
    ] = None
    system: Annotated[str | None, Option("System prompt.", metavar="TEXT")] = None
    batch: Annotated[
        Path | None,
        Option(
            "Send every line of a file: a prompt, or JSON with prompt, max_tokens and so on; `-` "
            "reads stdin.",
            metavar="FILE",
        ),
    ] = None
    stream: Annotated[
        bool, Option("Print the text as it is generated.", flags=("--stream/--no-stream",))
    ] = True
    json_schema: Annotated[
        str | None, Option("Generate JSON that matches this schema.", metavar=_FILE_OR_TEXT)
    ] = None
    regex: Annotated[
        str | None, Option("Generate text that matches this expression.", metavar="TEXT")
    ] = None
    grammar: Annotated[
        str | None, Option("Generate text of this EBNF grammar.", metavar=_FILE_OR_TEXT)
    ] = None
    structural_tag: Annotated[
        str | None, Option("Generate text of this structural tag (JSON).", metavar=_FILE_OR_TEXT)
    ] = None
    guide: Annotated[
        Literal["json"] | None, Option("Generate JSON of any form.", metavar="json")
    ] = None
    lora_dir: Annotated[
        Path | None,
        Option("Send the LoRA adapter in this folder with the request (gRPC).", metavar="DIR"),
    ] = None
    request_id: Annotated[
        str | None,
        Option(
            "Name of the request in the server's log and traces. Default: a new one.",
            metavar="ID",
        ),
    ] = None
