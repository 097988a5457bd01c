"""Plan the OpenAI-compatible gateway for a Slurm job.

The batch script runs the gateway on the first rank's node. The job chooses its ports when it
starts, so the script writes the gateway configuration from a here-document with shell variables.
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

    - `python`: Python interpreter that runs tllm on the submitting machine, as a shell word.
    - `port`: port of the gateway, as a shell word.
    - `moves_port`: true if the job chooses another port when `port` is in use.
    - `log`: path of the gateway log, as a shell word.
    - `config`: gateway configuration, as here-document text.
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
    as a shell word. `folder` is the server's state folder. If `folder` is a string, it may contain
    shell variables.
    """
    return SlurmGateway(
        python=shlex.quote(sys.executable),
        port=_PORT if port is None else str(port),
        moves_port=port is None,
        log=f"{prefix}{GATEWAY_LOG}",
        config=render_config(config, folder),
    )


def render_config(config: GatewayConfig, folder: Path | str) -> str:
    """Return the configuration as here-document text, with shell variables for the ports."""
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
    """Return `value` as JSON, with shell metacharacters escaped for a here-document."""
    return re.sub(r"[\\$`]", r"\\\g<0>", json.dumps(value))
