"""Plan the OpenAI-compatible gateway for a Slurm job.

The gateway runs in the batch script, on the node of the first rank. The job chooses its ports when
it starts, so the script writes the gateway's configuration with a here-document that contains shell
variables.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_serve_cli.gateway.config import GatewayConfig

GATEWAY_LOG = "gateway.log"
# The default ports lie between Triton's ports in `slurm.py` and Linux's ephemeral ports.
_PORT = "$((31000 + SLURM_JOB_ID % 1700))"


@dataclass(frozen=True, slots=True)
class SlurmGateway:
    """The gateway's variables for the template `templates/slurm/job.sbatch.j2`.

    `python` is the Python interpreter that runs tllm on the submitting machine. `log` is a path.
    `config` is the text of a here-document. `python`, `port` and `log` are shell words.
    `moves_port` is true if the job chooses another port when `port` is in use.
    """

    python: str
    port: str
    moves_port: bool
    log: str
    config: str


def plan_job_gateway(
    config: GatewayConfig, port: int | None, *, prefix: str, folder: Path | str
) -> SlurmGateway:
    """Plan the gateway for a job.

    If `port` is None, the job chooses a free port. `prefix` is the path prefix of the job's files,
    as a shell word. `folder` is the folder with the server's state. If `folder` is a string, it may
    contain shell variables.
    """
    return SlurmGateway(
        python=shlex.quote(sys.executable),
        port=_PORT if port is None else str(port),
        moves_port=port is None,
        log=f"{prefix}{GATEWAY_LOG}",
        config=render_config(config, folder),
    )


def render_config(config: GatewayConfig, folder: Path | str) -> str:
    """Return the configuration as here-document text with shell variables for the ports."""
    facts = dataclasses.asdict(config)
    models = ", ".join(map(_render_model, facts.pop("models")))
    del facts["port"], facts["server_directory"]
    directory = f'"{folder}"' if isinstance(folder, str) else _quote(str(folder))
    return (
        f'{{"port": $TLLM_OPENAI_PORT, "server_directory": {directory}, "models": [{models}], '
        f"{_quote(facts)[1:]}"
    )


def _render_model(model: dict[str, Any]) -> str:
    endpoint = '{"grpc": "127.0.0.1:$TLLM_GRPC_PORT", "http": "127.0.0.1:$TLLM_HTTP_PORT"}'
    named = _quote({name: value for name, value in model.items() if name != "endpoint"})
    return f'{{"endpoint": {endpoint}, {named[1:]}'


def _quote(value: Any) -> str:
    """Return `value` as JSON, escaped so that the shell does not expand it in a here-document."""
    return re.sub(r"[\\$`]", r"\\\g<0>", json.dumps(value))
