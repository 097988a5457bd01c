"""Declare the shared options of the `tllm deploy` commands, and write manifests and scripts."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.option_signature import OptionValues
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.launch_options import OPENAI_LIMITS, LaunchOptions
from trtllm_serve_cli.option_fields import option_fields

OutputOption = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Output file. Default: stdout."),
]
NodesOption = Annotated[
    int,
    typer.Option("--nodes", min=1, help="Number of nodes to distribute the engine's ranks across."),
]
# Unlike in `tllm start`, the default cannot depend on the number of cores, because the target
# machines are unknown.
OpenAiProcessesOption = Annotated[
    int,
    typer.Option(
        min=1, metavar="N", help="Number of processes that serve the OpenAI-compatible API."
    ),
]
HangTimeoutOption = Annotated[
    float,
    typer.Option(
        "--hang-timeout",
        min=0,
        metavar="SECONDS",
        help="Maximum time between engine steps while requests are in flight, in seconds. If an "
        "engine exceeds the limit, Kubernetes restarts the container, and a Slurm job restarts "
        "the engine or fails. The limit for other processes that do not respond is at most 30 s. "
        "With 0, hung engines are not restarted.",
    ),
]
# The `tllm start` options that the deploy commands also accept for the OpenAI-compatible API.
POD_GATEWAY = (
    "openai", "openai_auth", "chat_template", "tool_parser", "lora", "runtime_lora_dir",
    "cors_origin", *OPENAI_LIMITS,
)  # fmt: skip
TELEMETRY = option_fields(LaunchOptions, "otlp_endpoint")


def list_gateway_flags(values: OptionValues, num_processes: int) -> list[str]:
    """Return the options for the OpenAI-compatible API that the user set, except --no-openai.

    `values` are the values of the options in `POD_GATEWAY` and similar groups, and `num_processes`
    is the value of `OpenAiProcessesOption`.
    """
    flags = [
        each.shown_as
        for each in option_fields(LaunchOptions)
        if each.name in values and each.name != "openai"
    ]
    return [*flags, *(["--openai-processes"] if num_processes != 1 else [])]


def write_or_print(text: str, file: Path | None, command: str) -> None:
    """Print `text`, or write it to `file` and print the next step: run `command` on the file.

    Raise `BadInput` if the file cannot be written.
    """
    if file is None:
        print(text, end="")
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"{file} cannot be written.",
            why=error.strerror or str(error),
            next_step="choose a file in a writable folder with -o FILE",
        ) from error
    output.notify(f"Next: {command} {shlex.quote(str(file))}")
