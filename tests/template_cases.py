"""Variables for every template, and the rendered texts.

This file also runs in a fresh environment without the checkout, so it imports only the package.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from markupsafe import Markup

import trtllm_serve_cli
from trtllm_serve_cli.bench.report.page import Section, Table, Tile
from trtllm_serve_cli.launch.clusters.slurm import SlurmPlan
from trtllm_serve_cli.launch.clusters.slurm_gateway import SlurmGateway
from trtllm_serve_cli.rendering import render
from trtllm_serve_cli.repository.model.contract import Tensor
from trtllm_serve_cli.repository.model.model_config import ModelConfig, QueuePolicy

MODEL = ModelConfig(
    name="mine",
    title="text in, text out",
    module="text",
    inputs=(Tensor("text_input", "TYPE_STRING", (1,)), Tensor("stop", "TYPE_BOOL", (1,), (), True)),
    outputs=(Tensor("text_output", "TYPE_STRING", (-1,)),),
    parameters={"chat_template": "<s>é"},
    max_batch_size=8,
    is_decoupled=True,
    is_batched=True,
    queue=QueuePolicy(max_queue_size=9, priority_levels=2, default_priority_level=1),
)
JOB = SlurmPlan(
    name="mine",
    directives=("--nodes=1", "--ntasks-per-node=2"),
    srun=("--mpi=pmix",),
    prologue=("module load mpi",),
    exports={"TLLM_HTTP_PORT": "8000"},
    links={Path("python/stub"): "/opt/my triton/stub"},
    binary=Path("/opt/my triton/tritonserver"),
    flags=('"${role[@]}"',),
    first_flags=('--http-port="$TLLM_HTTP_PORT"',),
    other_flags=("--allow-http=false",),
    num_ranks=2,
    is_llm_api=False,
    moves_ports=True,
    address="address.json",
    exit_code="exit-code",
    state_folder="state",
    watch=("python3", "watch.py"),
    gateway=SlurmGateway("/my/python", "9000", True, "gateway.log", "{}"),
)
PAGE = {
    "title": "<mine> & yours",
    "subtitle": "20 requests/s",
    "banners": ["The result is partial."],
    "tiles": [Tile("TTFT, median", "58", "ms")],
    "sections": [
        Section("Times", [Markup("<svg></svg>")], [Table([("ITL", "<1")], ("Time", "P50"))]),
    ],
    "num_colours": 2,
    "footer": "Written by tllm.",
}
_HEARTBEATS = {
    "shared_files": "/dev/shm/tllm",
    "pulses_folder": "/dev/shm/pulses",
    "pulses_variable": "TLLM_PULSES",
}
ONE_POD = {
    **_HEARTBEATS,
    "command": ["tritonserver", "--http-port=8000"],
    "is_mpi": False,
    "nodes": 1,
    "slots": 1,
    "gateway_folder": "/run/tllm",
}
TWO_PODS = {
    **_HEARTBEATS,
    "command": ["mpirun", '--host "$hosts"'],
    "is_mpi": True,
    "nodes": 2,
    "slots": 8,
    "gateway_folder": None,
}

CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("kubernetes/kubessh.sh.j2", {}),
    ("kubernetes/server.sh.j2", ONE_POD),
    ("kubernetes/server.sh.j2", TWO_PODS),
    ("kubernetes/worker.sh.j2", {}),
    ("model_repository/config.pbtxt.j2", {"model": MODEL, "version": "1.2.3"}),
    ("model_repository/model.py.j2", {"model": MODEL, "version": "1.2.3"}),
    ("report/report.html.j2", PAGE),
    (
        "slurm/job.sbatch.j2",
        {name: getattr(JOB, name) for name in JOB.__slots__} | {"version": "1.2.3"},
    ),
)


def find_templates(folder: Path) -> list[str]:
    """Return the names of all files below `folder`, also of those that are not templates."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def render_cases() -> list[tuple[str, str]]:
    """Return the template and the text of every case."""
    return [(name, render(name, **variables)) for name, variables in CASES]


if __name__ == "__main__":
    package = Path(trtllm_serve_cli.__file__).parent
    found = {
        "package": str(package),
        "templates": find_templates(package / "templates"),
        "texts": render_cases(),
    }
    print(json.dumps(found))
