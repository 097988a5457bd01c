"""Run requests without a server, for `tllm infer --no-server`."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from trtllm_serve_cli.cli.infer import prompts
from trtllm_serve_cli.cli.infer.infer_options import InferOptions
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.target import Target
from trtllm_serve_cli.errors import BadInput, MissingPart

if TYPE_CHECKING:
    from trtllm_serve_cli.repository.model.model_repository import OpenRepository


def open_engine(options: InferOptions, repository: OpenRepository, resources: ExitStack) -> Target:
    """Start the engine of an imported model and return the engine as the target for requests.

    The engine stops when `resources` is closed.
    """
    from trtllm_serve_cli.client.local_engine import LocalEngine

    output.notify(f"Loading the engine of {repository.name} …")
    engine = LocalEngine(repository)
    resources.callback(engine.close)
    return Target(engine, repository.name, "grpc", options.timeout, engine.info)


def check_usage(options: InferOptions) -> None:
    """Raise `BadParameter` if an option requires a server."""
    needs_server = {
        "--url": options.url is not None,
        "--tls-ca": options.tls_ca is not None,
        "--interface": options.interface != "grpc",
        "--lora-dir": options.lora_dir is not None,
    }
    for flag, is_set in needs_server.items():
        if is_set:
            raise typer.BadParameter(
                (f"{flag} requires a server, but --no-server is set. Omit {flag} or --no-server."),
                param_hint=flag,
            )


def run_script(
    repository: OpenRepository,
    prompt: str | None,
    options: InferOptions,
    request: Mapping[str, Any],
) -> None:
    """Run TensorRT-LLM's run.py script on a TensorRT engine and exit with the script's exit code.

    Raise `BadInput` if the script does not support the request, or `MissingPart` if the script,
    `python3` or `mpirun` is required but missing.
    """
    from trtllm_serve_cli.cli.shared.sampling import complete_sampling
    from trtllm_serve_cli.client.local_engine import read_info
    from trtllm_serve_cli.engine_kinds.tensorrt.run_command import plan_run

    if prompt is None:
        raise BadInput(
            "Without a server, a TensorRT engine requires a single prompt.",
            why="TensorRT-LLM's run.py script accepts one prompt, not a conversation or a batch",
            next_step='pass a prompt, for example `tllm infer --no-server "What is ML?"`',
        )
    if options.show_tokens:
        raise BadInput(
            "--no-server does not support --show-tokens for TensorRT engines.",
            why=(
                "--no-server runs the engine with TensorRT-LLM's run.py script, which prints only "
                "text"
            ),
            next_step="omit --show-tokens, or run `tllm start` and omit --no-server",
        )
    words = prompts.read_prompt(prompt)
    prompts.check_prompt(words)
    info = read_info(repository)
    text = prompts.plan_prompt(info, options.chat, options.system)(words)
    folder = Path(repository.value("tensorrt_llm", "parameters.gpt_model_path"))
    fields = {**request, **complete_sampling(request)}
    command = plan_run(folder, info.tokenizer_dir or str(folder), text, fields)
    output.notify(f"Running {shlex.join(command)}")
    script = next(Path(each) for each in command if each.endswith("run.py"))
    if shutil.which(command[0]) is None or not script.is_file():
        missing = script if shutil.which(command[0]) else command[0]
        raise MissingPart(
            f"{missing} is not installed.",
            why="--no-server runs the engine with TensorRT-LLM's run.py script",
            next_step="run the command in NVIDIA's Triton container, or run `tllm start` and omit "
            "--no-server",
        )
    raise typer.Exit(subprocess.run(command, check=False).returncode)
