"""`tllm deploy`: a model on machines that somebody else schedules."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from trtllm_serve_cli.choices import ServiceType
from trtllm_serve_cli.cli.command_groups import FullSummaryGroup
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.options import JsonOption, ModelOption
from trtllm_serve_cli.errors import BadInput

deploy_app = typer.Typer(
    cls=FullSummaryGroup,
    help="Serve a model on a cluster: Slurm or Kubernetes.",
    no_args_is_help=True,
)

OutputOption = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Write it there, not to stdout."),
]
NodesOption = Annotated[
    int, typer.Option("--nodes", min=1, help="Nodes that share the engine's ranks.")
]
PortOption = Annotated[
    int | None, typer.Option(min=1, max=65535, help="Default: the job finds a free one.")
]


@deploy_app.command()
def slurm(
    model: ModelOption = None,
    submit: Annotated[
        bool, typer.Option("--submit", help="Submit it, and follow it with `tllm status`.")
    ] = False,
    output_file: OutputOption = None,
    account: Annotated[str | None, typer.Option("-A", "--account", help="Who is charged.")] = None,
    partition: Annotated[
        str | None, typer.Option("-p", "--partition", help="Where it is queued.")
    ] = None,
    nodes: NodesOption = 1,
    ntasks_per_node: Annotated[
        int | None, typer.Option(min=1, help="Default: as many as the engine has ranks there.")
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=0, help="Default: those of the engine; 0 asks for none.")
    ] = None,
    time: Annotated[
        str | None, typer.Option(metavar="[D-]HH:MM:SS", help="When Slurm ends it.")
    ] = None,
    mpi: Annotated[
        str | None, typer.Option(help="How srun starts ranks. Default: pmix, for several.")
    ] = None,
    container_image: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            help="A container with Triton, for pyxis; `auto` is NVIDIA's that fits the engine. "
            "Default: the Triton found here, on the nodes.",
        ),
    ] = None,
    container_mounts: Annotated[
        list[str] | None,
        typer.Option(metavar="SRC:DST[:FLAGS]", help="Beside the model's own folders; repeatable."),
    ] = None,
    container_workdir: Annotated[str | None, typer.Option(metavar="DIR")] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION", help="Any other option of sbatch, such as --sbatch=--exclusive."
        ),
    ] = None,
    prologue: Annotated[
        list[str] | None,
        typer.Option(metavar="COMMAND", help="Run on the first node before; repeatable."),
    ] = None,
    http_port: PortOption = None,
    grpc_port: PortOption = None,
    metrics_port: PortOption = None,
    log_verbose: Annotated[int, typer.Option(min=0, max=3, help="Triton's verbosity.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Write the sbatch script that serves a model, or submit it.

    A job that is submitted keeps its script in its own folder; --json says which that is.
    TLLM_HOME has to lie on a file system that the nodes share. The server listens on all addresses
    of its node, for clients elsewhere; what a Triton restricts stays so.

    Example:  tllm deploy slurm -m demo --partition batch --time 08:00:00 --submit
    """
    if submit and output_file is not None:
        raise typer.BadParameter(
            "a job keeps its script itself: not with --submit", param_hint="-o"
        )
    if as_json and not submit:
        raise typer.BadParameter("tells of a job: only with --submit", param_hint="--json")
    from trtllm_serve_cli.launch.clusters.slurm import SlurmOptions, render_script
    from trtllm_serve_cli.launch.launch_options import LaunchOptions
    from trtllm_serve_cli.launch.servers.deploy import find_image, plan_slurm_here, submit_slurm
    from trtllm_serve_cli.paths import find_home

    home = find_home()
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
    )
    launch_options = LaunchOptions(host="0.0.0.0", log_verbose=log_verbose)
    if not submit:
        plan = plan_slurm_here(home, model, options, launch_options)
        _write_or_print(render_script(plan), output_file, "sbatch")
        return
    job, directory = submit_slurm(home, model, options, launch_options)
    if as_json:
        output.show_json({"job": job.id, "state": job.state, "directory": str(directory)})
        return
    output.notify(f"Submitted as Slurm job {job.id}; all of it lies in {directory}")
    output.notify("Next: tllm status")


@deploy_app.command()
def k8s(
    model: ModelOption = None,
    output_file: OutputOption = None,
    namespace: Annotated[str | None, typer.Option("-n", "--namespace")] = None,
    image: Annotated[
        str | None,
        typer.Option(
            help="A container with Triton. Default: NVIDIA's that fits the engine. For several "
            "nodes it needs kubectl as well."
        ),
    ] = None,
    image_pull_secret: Annotated[
        str | None, typer.Option(metavar="NAME", help="The Secret that opens the image's registry.")
    ] = None,
    nodes: NodesOption = 1,
    replicas: Annotated[int, typer.Option(min=1, help="Servers, or groups of nodes.")] = 1,
    max_replicas: Annotated[
        int, typer.Option(min=1, help="How many the autoscaler may make of them.")
    ] = 4,
    queue_target: Annotated[
        int,
        typer.Option(min=1, help="Requests that may wait per replica before there is one more."),
    ] = 4,
    claim: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The PersistentVolumeClaim with a copy of TLLM_HOME. Default: the nodes have the "
            "model at the same paths as this machine.",
        ),
    ] = None,
    shared_memory: Annotated[
        str, typer.Option(metavar="QUANTITY", help="Size of /dev/shm.")
    ] = "1Gi",
    cpu: Annotated[str | None, typer.Option(metavar="QUANTITY")] = None,
    memory: Annotated[str | None, typer.Option(metavar="QUANTITY")] = None,
    gpu_resource: Annotated[
        str, typer.Option(metavar="NAME", help="What a GPU is called; nvidia.com/mig-1g.10gb, say.")
    ] = "nvidia.com/gpu",
    service_type: Annotated[
        ServiceType, typer.Option(help="How the server is reached.")
    ] = "ClusterIP",
    pod_monitor: Annotated[
        bool, typer.Option(help="Have the Prometheus operator scrape it.")
    ] = True,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="How long it may take to be ready.")
    ] = 600.0,
    log_verbose: Annotated[int, typer.Option(min=0, max=3, help="Triton's verbosity.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Write the manifests that serve a model on Kubernetes.

    One node is a Deployment, several are a LeaderWorkerSet; a Service, an autoscaler by the
    requests that wait, and a PodMonitor come with it. --json makes a List of them, also in a file.

    Example:  tllm deploy k8s -m llama-3-8b --claim models | kubectl apply -f -
    """
    from trtllm_serve_cli.launch.clusters.kubernetes import KubernetesOptions, render_manifests
    from trtllm_serve_cli.launch.launch_options import LaunchOptions
    from trtllm_serve_cli.launch.servers.deploy import plan_kubernetes_here
    from trtllm_serve_cli.paths import find_home

    options = KubernetesOptions(
        namespace=namespace,
        image=image,
        image_pull_secret=image_pull_secret,
        nodes=nodes,
        replicas=replicas,
        max_replicas=max_replicas,
        queue_target=queue_target,
        claim=claim,
        shared_memory=shared_memory,
        cpu=cpu,
        memory=memory,
        gpu_resource=gpu_resource,
        service_type=service_type,
        has_pod_monitor=pod_monitor,
    )
    launch_options = LaunchOptions(host="0.0.0.0", timeout_s=timeout, log_verbose=log_verbose)
    manifests = plan_kubernetes_here(find_home(), model, options, launch_options)
    if as_json and output_file is None:
        output.show_json(_as_list(manifests))
        return
    text = f"{json.dumps(_as_list(manifests), indent=2)}\n" if as_json else None
    _write_or_print(text or render_manifests(manifests), output_file, "kubectl apply -f")


def _as_list(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": manifests}


def _write_or_print(text: str, file: Path | None, command: str) -> None:
    if file is None:
        print(text, end="")
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"{file} cannot be written.",
            why=error.strerror or str(error),
            next_step="name a file in a folder that is there: -o FILE",
        ) from error
    output.notify(f"Next: {command} {shlex.quote(str(file))}")
