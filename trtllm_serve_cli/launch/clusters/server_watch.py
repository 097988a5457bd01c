"""Build the commands for the programs that monitor servers in pods and Slurm jobs.

Servers in pods and Slurm jobs have no supervisor. Triton's images do not contain tllm, so `python3`
runs the programs from the copy of the runtime package in the model repository.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from trtllm_serve_cli.launch.containers.deployment import Deployable
from trtllm_serve_cli.repository.model.runtime_copy import RUNTIME_PACKAGE
from trtllm_serve_cli.runtime.watch.liveness import HangLimits

_TOKEN_INPUTS = {"text_input": "Hello", "max_tokens": 1}


def watch_command(runtime: Path, program: Literal["pod_probe", "job_server"]) -> tuple[str, ...]:
    """Return the command that runs `program` from the runtime package in the folder `runtime`."""
    # Do not set PYTHONPATH, because Triton and the models would inherit it.
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); "
        f"from {RUNTIME_PACKAGE}.watch.{program} import main; main()"
    )
    return ("python3", "-I", "-S", "-c", code, str(runtime))


def limit_words(model: Deployable, limits: HangLimits) -> tuple[str, ...]:
    """Return the arguments that set the hang limits of `pod_probe` or `job_server`.

    If the engine does not write heartbeats, also return the arguments for token requests.
    """
    token = ("--token", model.text_model, json.dumps(_TOKEN_INPUTS)) if model.needs_tokens else ()
    return (
        f"--hang-timeout={limits.hang_timeout_s:g}",
        f"--load-timeout={limits.load_timeout_s:g}",
        *token,
    )
