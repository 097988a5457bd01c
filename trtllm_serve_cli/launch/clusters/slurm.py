"""Plan a Slurm job that serves a model, and render the job's script for `sbatch`.

The nodes need Triton, either installed or in a container image, and must share a file system with
the submitting machine. By default, the script chooses free ports. The script writes the server's
address to a file.

The script can also run the OpenAI-compatible gateway on the first node, outside the container. If
that node does not have tllm at the same path as the submitting machine, the job does not run the
gateway.

The script's options follow the scripts in triton-inference-server/tensorrtllm_backend (README.md)
and in NVIDIA/TensorRT-LLM (examples/llm-api/llm_mgmn_trtllm_serve.sh).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from trtllm_serve_cli import __version__
from trtllm_serve_cli.containers.container import check_mounts
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.launch.clusters.slurm_gateway import SlurmGateway, plan_job_gateway
from trtllm_serve_cli.launch.clusters.slurm_watch import STATE_FOLDER, plan_job_watch
from trtllm_serve_cli.launch.containers.deployment import (
    CORE_MODEL,
    RESTRICTING,
    Deployable,
    check_nodes,
    split_evenly,
    triton_words,
)
from trtllm_serve_cli.launch.launch_options import LaunchOptions, check_distinct
from trtllm_serve_cli.launch.triton.telemetry_env import telemetry_environ
from trtllm_serve_cli.launch.triton.triton_command import (
    backend_links,
    flag_words,
    other_rank_flags,
)
from trtllm_serve_cli.launch.triton.triton_install import TritonInstallation
from trtllm_serve_cli.processes import SINGLE_THREADED
from trtllm_serve_cli.rendering import render

ADDRESS_FILE = "address.json"
EXIT_CODE_FILE = "exit-code"
JOB_LOG = "job.log"
SCRIPT_FILE = "job.sbatch"

# The formats of sbatch's --time option: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS,
# INFINITE and UNLIMITED.
_TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|INFINITE|UNLIMITED", re.IGNORECASE)
# Maps each port flag to the protocol name in its shell variable, for example HTTP for
# TLLM_HTTP_PORT.
_PORTS = {"http-port": "HTTP", "grpc-port": "GRPC", "metrics-port": "METRICS"}
# Flags to pass only to the first rank, which serves requests. The other ranks get the flags from
# `other_rank_flags` instead.
_FIRST_RANK_FLAGS = (
    *_PORTS, *RESTRICTING, "http-address", "grpc-address", "metrics-address",
    "model-control-mode", "allow-gpu-metrics",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """The options for a Slurm job. Options of `sbatch`, `srun` and pyxis keep their names.

    - `sbatch`: additional options for the script's `#SBATCH` lines.
    - `prologue`: shell commands to run before the server starts.
    - `http_port`, `grpc_port`, `metrics_port`: Triton's ports. If a port is None, the job derives
      it from the job ID. If all three are None and a derived port is in use, the job uses higher
      ports.
    - `openai_port`: port of the OpenAI-compatible API. If None, the job derives the port from the
      job ID and uses a higher port if the derived port is in use.
    """

    account: str | None = None
    partition: str | None = None
    nodes: int = 1
    ntasks_per_node: int | None = None
    gpus_per_node: int | None = None
    time: str | None = None
    mpi: str | None = None
    container_image: str | None = None
    container_mounts: tuple[str, ...] = ()
    container_workdir: str | None = None
    sbatch: tuple[str, ...] = ()
    prologue: tuple[str, ...] = ()
    http_port: int | None = None
    grpc_port: int | None = None
    metrics_port: int | None = None
    openai_port: int | None = None


@dataclass(frozen=True, slots=True)
class SlurmPlan:
    """The variables for the template `templates/slurm/job.sbatch.j2`.

    The flags and the values in `exports` are shell words that may contain variables.

    - `directives`, `srun`: options for the `#SBATCH` lines and for the `srun` command.
    - `links`: symbolic links to create on the node. Maps each link's path in the job's backend
      folder to a file of the embedded Triton. The template quotes the file paths.
    - `binary`: path of `tritonserver`. The template quotes the path.
    - `flags`: Triton's flags for all ranks.
    - `first_flags`: additional flags for the rank that serves requests.
    - `other_flags`: additional flags for all other ranks.
    - `moves_ports`: true if the job uses higher ports when a derived port is in use.
    - `address`, `exit_code`, `state_folder`: paths of the files and the folder that the job writes,
      as shell words.
    - `watch`: shell words that precede Triton's command, or an empty tuple if no program
      monitors Triton.
    - `gateway`: variables of the OpenAI-compatible gateway, or None if the job does not run it.
    """

    name: str
    directives: tuple[str, ...]
    srun: tuple[str, ...]
    prologue: tuple[str, ...]
    exports: Mapping[str, str]
    links: Mapping[Path, str]
    binary: Path
    flags: tuple[str, ...]
    first_flags: tuple[str, ...]
    other_flags: tuple[str, ...]
    num_ranks: int
    is_llm_api: bool
    moves_ports: bool
    address: str
    exit_code: str
    state_folder: str
    watch: tuple[str, ...] = ()
    gateway: SlurmGateway | None = None


def plan_slurm(
    model: Deployable,
    triton: TritonInstallation,
    options: SlurmOptions,
    launch: LaunchOptions,
    *,
    directory: Path | None = None,
    environ: Mapping[str, str],
    gateway: GatewayConfig | None = None,
) -> SlurmPlan:
    """Plan a job that serves `model` with `triton`, the installation on the nodes or in the image.

    - `directory`: folder for the job's files. If None, the job writes its files to the folder from
      which it was submitted, and the file names include the model name and the job ID.
    - `environ`: additional environment variables for the job.
    - `gateway`: configuration of the OpenAI-compatible gateway, or None to run no gateway. The job
      sets the ports when it starts.

    Raise `BadInput` if an option is not valid, or if the model cannot run in a Slurm job on
    `options.nodes` nodes.
    """
    ports = (options.http_port, options.grpc_port, options.metrics_port)
    check_distinct((*ports, None if gateway is None else options.openai_port))
    check_nodes(model, options.nodes)
    _check_not_spawning(model)
    if options.container_image is None and (options.container_mounts or options.container_workdir):
        raise BadInput(
            "--container-mounts and --container-workdir require a container image.",
            next_step="add --container-image IMAGE",
        )
    if options.container_image is not None:
        check_mounts(model.folders, ":,")
    _check_time(options.time)
    tasks = split_evenly(model.num_ranks, options.nodes, "ranks")
    if options.ntasks_per_node not in (None, tasks):
        raise BadInput(
            f"--ntasks-per-node must be {tasks} for {model.name}, not {options.ntasks_per_node}.",
            why=(
                f"the engine has {model.num_ranks} ranks, and each of the {options.nodes} nodes "
                "must run the same number of ranks"
            ),
            next_step="omit --ntasks-per-node, or choose another number of nodes with --nodes",
        )
    in_slurm, in_shell = _file_prefixes(model, directory)
    prefix = '"tllm-$SLURM_JOB_ID-$SLURM_PROCID-"'
    flags = triton_words(
        model,
        triton,
        launch,
        token='"$TLLM_TOKEN"',
        unquoted={
            **{flag: f'"$TLLM_{name}_PORT"' for flag, name in _PORTS.items()},
            **({"backend-directory": '"$TLLM_BACKENDS"'} if triton.backend_parts else {}),
            "backend-config": f"python,shm-region-prefix-name={prefix}",
        },
    )
    is_split = model.num_ranks > 1 and not model.is_llm_api
    return SlurmPlan(
        name=model.name,
        directives=_directives(model, options, tasks, in_slurm),
        srun=_srun(model, options, in_slurm, directory),
        prologue=options.prologue,
        exports={
            **{
                f"TLLM_{name}_PORT": str(port or f"$((10000 + SLURM_JOB_ID % 7000 * 3 + {index}))")
                for index, (name, port) in enumerate(zip(_PORTS.values(), ports, strict=True))
            },
            **{
                name: shlex.quote(value)
                for name, value in {
                    **SINGLE_THREADED,
                    **environ,
                    **telemetry_environ(launch),
                }.items()
            },
        },
        links={
            Path(path).relative_to("backends"): target
            for path, target in backend_links(triton).items()
        },
        binary=triton.binary,
        flags=tuple(
            word for name, word in flags.items() if not (is_split and name in _FIRST_RANK_FLAGS)
        ) + (('"${role[@]}"',) if is_split else ()),
        first_flags=tuple(
            flags[name] for name in _FIRST_RANK_FLAGS if is_split and name in flags
        ),
        other_flags=flag_words(other_rank_flags((CORE_MODEL,))) if is_split else (),
        num_ranks=model.num_ranks,
        is_llm_api=model.is_llm_api,
        moves_ports=ports == (None, None, None),
        address=f"{in_shell}{ADDRESS_FILE}",
        exit_code=f"{in_shell}{EXIT_CODE_FILE}",
        state_folder=f"{in_shell}{STATE_FOLDER}",
        watch=plan_job_watch(model, launch, prefix),
        gateway=None if gateway is None else plan_job_gateway(
            gateway,
            options.openai_port,
            prefix=in_shell,
            # Do not quote $SLURM_JOB_ID, because the shell must expand the variable.
            folder=f"tllm-{model.name}-$SLURM_JOB_ID-{STATE_FOLDER}"
            if directory is None else directory / STATE_FOLDER,
        ),
    )  # fmt: skip


def _check_time(time: str | None) -> None:
    if time is not None and not _TIME.fullmatch(time):
        raise BadInput(
            f"{time!r} is not a valid Slurm time limit.",
            why="Slurm accepts minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS and UNLIMITED",
            next_step="pass a valid time limit, for example --time 08:00:00",
        )


def render_script(plan: SlurmPlan) -> str:
    """Return the batch script for `sbatch`."""
    variables = {each.name: getattr(plan, each.name) for each in fields(plan)}
    return render("slurm/job.sbatch.j2", **variables, version=__version__)


def _check_not_spawning(model: Deployable) -> None:
    if model.spawns:
        raise BadInput(
            f"{model.name} cannot run under Slurm.",
            why="several instances or a draft engine require TensorRT-LLM's orchestrator mode, "
            "which spawns MPI processes, and srun does not support spawning",
            next_step=f"run `tllm set {model.name} gpu_device_ids= tensorrt_llm_instance_count=1` "
            "and submit one job per instance, or import the model without --draft",
        )


def _file_prefixes(model: Deployable, directory: Path | None) -> tuple[str, str]:
    """Return the path prefix of the job's files in two forms: for Slurm options and the shell.

    If `directory` is None, both prefixes contain the job ID. The prefix for the shell uses
    $SLURM_JOB_ID, because only Slurm expands %j.
    """
    if directory is None:
        return f"tllm-{model.name}-%j-", f'"tllm-{model.name}-$SLURM_JOB_ID-"'
    text = f"{directory}/"
    return text.replace("%", "%%"), shlex.quote(text)


def _directives(
    model: Deployable, options: SlurmOptions, tasks: int, prefix: str
) -> tuple[str, ...]:
    gpus = options.gpus_per_node
    if gpus is None:
        gpus = split_evenly(model.num_gpus, options.nodes, "GPUs")
    values = {
        "job-name": f"tllm-{model.name}",
        "account": options.account,
        "partition": options.partition,
        "nodes": options.nodes,
        "ntasks-per-node": tasks,
        "gpus-per-node": gpus or None,
        "time": options.time,
        "output": f"{prefix}{JOB_LOG}",
        "error": f"{prefix}{JOB_LOG}",
        "open-mode": "append",
    }
    return (*_format_options(values), *options.sbatch)


def _srun(
    model: Deployable, options: SlurmOptions, prefix: str, directory: Path | None
) -> tuple[str, ...]:
    has_ranks = model.num_ranks > 1
    values: dict[str, object] = {
        "mpi": options.mpi or ("pmix" if has_ranks else None),
        # Without this option, the other ranks keep waiting for a failed rank.
        "kill-on-bad-exit": 1 if has_ranks else None,
        "output": f"{prefix}server_%t.log",
    }
    if options.container_image is not None:
        mounts = [f"{folder}:{folder}:ro" for folder in model.folders]
        if directory is not None:
            # Triton's container writes the server's state to this folder.
            mounts.append(f"{directory / STATE_FOLDER}:{directory / STATE_FOLDER}")
        values |= {
            "container-image": options.container_image,
            "container-mounts": ",".join((*mounts, *options.container_mounts)),
            "container-workdir": options.container_workdir,
        }
    return _format_options(values)


def _format_options(values: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(
        f"--{name}={shlex.quote(str(value))}" for name, value in values.items() if value is not None
    )
