"""`tllm deploy slurm`: write or submit a Slurm job that serves a model."""

from __future__ import annotations

from typing import Annotated

import typer

from trtllm_serve_cli.cli.server.deploy_options import (
    POD_GATEWAY,
    TELEMETRY,
    HangTimeoutOption,
    NodesOption,
    OpenAiProcessesOption,
    OutputOption,
    list_gateway_flags,
    write_or_print,
)
from trtllm_serve_cli.cli.server.other_runtimes import notify_other_runtimes
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.model_argument import accepts_name
from trtllm_serve_cli.cli.shared.option_signature import OptionValues, takes_options
from trtllm_serve_cli.cli.shared.options import ImportedModelOption, JsonOption
from trtllm_serve_cli.launch.launch_options import HANG_TIMEOUT_S, LaunchOptions
from trtllm_serve_cli.option_fields import option_fields

_DEFAULT_PORT = (
    "Default: derived from the job id. If none of the HTTP, gRPC and metrics ports is set, the "
    "job skips ports that are in use."
)
HttpPortOption = Annotated[
    int | None, typer.Option(min=1, max=65535, help=f"HTTP port. {_DEFAULT_PORT}")
]
GrpcPortOption = Annotated[
    int | None, typer.Option(min=1, max=65535, help=f"gRPC port. {_DEFAULT_PORT}")
]
MetricsPortOption = Annotated[
    int | None, typer.Option(min=1, max=65535, help=f"Metrics port. {_DEFAULT_PORT}")
]
OpenAiPortOption = Annotated[
    int | None,
    typer.Option(
        min=1, max=65535, help="Port for the OpenAI-compatible API. Default: a free port."
    ),
]
_JOB_GATEWAY = (*POD_GATEWAY, "openai_cert", "openai_key")


@accepts_name()
@takes_options(gateway=option_fields(LaunchOptions, *_JOB_GATEWAY), telemetry=TELEMETRY)
def slurm(
    *,
    model: ImportedModelOption = None,
    submit: Annotated[
        bool,
        typer.Option(
            "--submit",
            help="Submit the script as a Slurm job. `tllm status` shows the state of submitted "
            "jobs.",
        ),
    ] = False,
    output_file: OutputOption = None,
    account: Annotated[
        str | None,
        typer.Option(
            "-A", "--account", help="Slurm account to charge. Default: the user's default account."
        ),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            "-p",
            "--partition",
            help="Slurm partition to submit the job to. Default: the cluster's default partition.",
        ),
    ] = None,
    nodes: NodesOption = 1,
    ntasks_per_node: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of tasks per node, which must equal the number of ranks on each node. "
            "Default: that number.",
        ),
    ] = None,
    gpus_per_node: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of GPUs to request per node. Use 0 to request no GPUs. Default: the "
            "number of GPUs that the engine uses on each node.",
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="[D-]HH:MM:SS",
            help="Job time limit. Default: the partition's default time limit.",
        ),
    ] = None,
    mpi: Annotated[
        str | None,
        typer.Option(
            help="MPI type for srun's --mpi option. Default: pmix if the engine has several "
            "ranks, otherwise srun is called without --mpi."
        ),
    ] = None,
    container_image: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            help="Triton container image to run with the pyxis plugin. `auto` selects the NVIDIA "
            "image that matches the engine. Default: no container. Without a container, Triton "
            "must be installed on the nodes at the same path as on this machine.",
        ),
    ] = None,
    container_mounts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SRC:DST[:FLAGS]",
            help="Additional mount for the --container-mounts option of pyxis. Requires "
            "--container-image. Repeatable.",
        ),
    ] = None,
    container_workdir: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Working directory in the container. Requires --container-image. Default: the "
            "image's working directory.",
        ),
    ] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION",
            help="Additional sbatch option, for example --sbatch=--exclusive. Repeatable.",
        ),
    ] = None,
    prologue: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COMMAND",
            help="Command to run on the first node before Triton starts. Repeatable.",
        ),
    ] = None,
    http_port: HttpPortOption = None,
    grpc_port: GrpcPortOption = None,
    metrics_port: MetricsPortOption = None,
    openai_port: OpenAiPortOption = None,
    openai_processes: OpenAiProcessesOption = 1,
    gateway: OptionValues,
    telemetry: OptionValues,
    hang_timeout: HangTimeoutOption = HANG_TIMEOUT_S,
    log_verbose: Annotated[
        int,
        typer.Option(
            min=0,
            max=3,
            help="Verbosity level of Triton's log. 0 disables verbose messages.",
        ),
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Write or submit an sbatch script that serves a model.

    TLLM_HOME must be on a file system that all nodes of the job can access. --submit writes the
    script to a new folder for the job, and --json prints the path of that folder.

    The server listens on all addresses of its node, so that clients on other machines can connect.
    These clients cannot use Triton's restricted APIs, for example the API that loads models. The
    job also serves the OpenAI-compatible API if tllm is installed on its first node, at the same
    path as on this machine. Otherwise, run `tllm gateway` on another machine.

    Example:  tllm deploy slurm -m demo --partition batch --time 08:00:00 --submit
    """
    if submit and output_file is not None:
        raise typer.BadParameter(
            "-o cannot be used with --submit, which writes the script to the job's folder. Omit "
            "one of them.",
            param_hint="-o",
        )
    if as_json and not submit:
        raise typer.BadParameter(
            "--json requires --submit. Add --submit, or omit --json.", param_hint="--json"
        )
    flags = list_gateway_flags(gateway, openai_processes)
    flags += [] if openai_port is None else ["--openai-port"]
    if flags and not gateway.get("openai", True):
        raise typer.BadParameter(
            f"{flags[0]} requires a job that serves the OpenAI-compatible API. Omit {flags[0]}, or "
            "omit --no-openai.",
            param_hint=flags[0],
        )
    from trtllm_serve_cli.launch.clusters.slurm import SlurmOptions, render_script
    from trtllm_serve_cli.launch.servers.deploy import find_image, plan_slurm_here, submit_slurm
    from trtllm_serve_cli.paths import find_home
    from trtllm_serve_cli.repository.model.store import load_model

    home = find_home()
    notify_other_runtimes([load_model(home, model).path])
    if container_image == "auto":
        container_image = find_image(home, model)
    options = SlurmOptions(
        account=account,
        partition=partition,
        nodes=nodes,
        ntasks_per_node=ntasks_per_node,
        gpus_per_node=gpus_per_node,
        time=time,
        mpi=mpi,
        container_image=container_image,
        container_mounts=tuple(container_mounts or ()),
        container_workdir=container_workdir,
        sbatch=tuple(sbatch or ()),
        prologue=tuple(prologue or ()),
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        openai_port=openai_port,
    )
    launch_options = LaunchOptions(
        host="0.0.0.0",
        hang_timeout_s=hang_timeout,
        log_verbose=log_verbose,
        openai_processes=openai_processes,
        **gateway,
        **telemetry,
    )
    if not submit:
        plan = plan_slurm_here(home, model, options, launch_options)
        write_or_print(render_script(plan), output_file, "sbatch")
        return
    job, directory = submit_slurm(home, model, options, launch_options)
    if as_json:
        output.show_json({"job": job.id, "state": job.state, "directory": str(directory)})
        return
    output.notify(f"Submitted Slurm job {job.id}. The job's files are in {directory}")
    output.notify("Next: tllm status")
