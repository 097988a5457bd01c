"""`tllm deploy`: deploy a model to Slurm or Kubernetes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from trtllm_serve_cli.choices import ServiceType
from trtllm_serve_cli.cli.command_groups import FullSummaryGroup
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.model_argument import accepts_name
from trtllm_serve_cli.cli.shared.option_signature import OptionValues, takes_options
from trtllm_serve_cli.cli.shared.options import ImportedModelOption, JsonOption
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.launch_options import HANG_TIMEOUT_S, OPENAI_LIMITS, LaunchOptions
from trtllm_serve_cli.option_fields import option_fields

deploy_app = typer.Typer(
    cls=FullSummaryGroup,
    help="Deploy a model to Slurm or Kubernetes.",
    no_args_is_help=True,
)

OutputOption = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", metavar="FILE", help="File to write the output to. Default: stdout."
    ),
]
NodesOption = Annotated[
    int,
    typer.Option("--nodes", min=1, help="Number of nodes to distribute the engine's ranks across."),
]
_DEFAULT_PORT = (
    "Default: a port derived from the job id. If no HTTP, gRPC or metrics port is set, the job "
    "skips ports that are in use."
)
HttpPortOption = Annotated[
    int | None, typer.Option(min=1, max=65535, help=f"Port for HTTP. {_DEFAULT_PORT}")
]
GrpcPortOption = Annotated[
    int | None, typer.Option(min=1, max=65535, help=f"Port for gRPC. {_DEFAULT_PORT}")
]
MetricsPortOption = Annotated[
    int | None, typer.Option(min=1, max=65535, help=f"Port for metrics. {_DEFAULT_PORT}")
]
OpenAiPortOption = Annotated[
    int | None,
    typer.Option(
        min=1, max=65535, help="Port for the OpenAI-compatible API. Default: a free port."
    ),
]
# Unlike in `tllm start`, the default cannot depend on the number of cores, because the cores of the
# target machines are unknown.
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
        help="Time in seconds after which the supervisor restarts an engine that has requests "
        "but completes no step. Processes that do not respond at all are restarted after at "
        "most 30 s. With 0, hangs are only reported.",
    ),
]
# The options of `tllm start` for the OpenAI-compatible API that the deploy commands also accept.
_POD_GATEWAY = (
    "openai", "openai_auth", "chat_template", "tool_parser", "cors_origin", *OPENAI_LIMITS,
)  # fmt: skip
_TELEMETRY = option_fields(LaunchOptions, "otlp_endpoint")
_JOB_GATEWAY = (*_POD_GATEWAY, "openai_cert", "openai_key")


@deploy_app.command()
@accepts_name()
@takes_options(gateway=option_fields(LaunchOptions, *_JOB_GATEWAY), telemetry=_TELEMETRY)
def slurm(
    *,
    model: ImportedModelOption = None,
    submit: Annotated[
        bool,
        typer.Option(
            "--submit",
            help="Submit the script as a Slurm job. `tllm status` then shows the job's state.",
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
            min=1, help="Number of tasks per node. Default: the number of ranks on each node."
        ),
    ] = None,
    gpus_per_node: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of GPUs per node. 0 requests no GPUs. Default: the number of GPUs that "
            "the engine uses on each node.",
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="[D-]HH:MM:SS",
            help="Time limit of the job. Default: the partition's default limit.",
        ),
    ] = None,
    mpi: Annotated[
        str | None,
        typer.Option(
            help="MPI type to pass to srun with --mpi. Default: pmix if the engine has several "
            "ranks. For a single rank, srun is called without --mpi."
        ),
    ] = None,
    container_image: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            help="Container image with Triton. The Slurm plugin pyxis starts the container. "
            "`auto` selects the NVIDIA image that matches the engine. Default: no "
            "container. The nodes then require Triton at the same path as on this machine.",
        ),
    ] = None,
    container_mounts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SRC:DST[:FLAGS]",
            help="Additional mount for the container, in the format of pyxis. Repeatable.",
        ),
    ] = None,
    container_workdir: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Working directory in the container. Default: the image's working directory.",
        ),
    ] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION",
            help="Additional option for sbatch, for example --sbatch=--exclusive. Repeatable.",
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
            help="Verbosity level of Triton's log. With 0, verbose messages are not logged.",
        ),
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Write an sbatch script that serves a model, or submit the script.

    TLLM_HOME must be on a file system that all nodes of the job can access. --submit writes the
    script to a new folder for the job, and --json prints the path of that folder.

    The server binds all addresses of its node, so that clients on other machines can connect. These
    clients cannot use Triton's restricted APIs, for example the API that loads models. The job also
    serves the OpenAI-compatible API if tllm is installed on its first node, at the same path as on
    this machine. Otherwise, run `tllm gateway` on another machine.

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
    from trtllm_serve_cli.launch.clusters.slurm import SlurmOptions, render_script
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
        _write_or_print(render_script(plan), output_file, "sbatch")
        return
    job, directory = submit_slurm(home, model, options, launch_options)
    if as_json:
        output.show_json({"job": job.id, "state": job.state, "directory": str(directory)})
        return
    output.notify(f"Submitted Slurm job {job.id}. The files of the job are in {directory}")
    output.notify("Next: tllm status")


@deploy_app.command()
@accepts_name()
@takes_options(
    gateway=option_fields(LaunchOptions, "openai_port", *_POD_GATEWAY), telemetry=_TELEMETRY
)
def k8s(
    *,
    model: ImportedModelOption = None,
    output_file: OutputOption = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--namespace",
            help="Namespace of the manifests. Default: no namespace. If --nodes is greater than "
            "1, the default is `default`, because manifests for several nodes must contain "
            "a namespace.",
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            help="Container image with Triton. If --nodes is greater than 1, the image must also "
            "contain kubectl. Default: the NVIDIA image that matches the engine."
        ),
    ] = None,
    image_pull_secret: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the image pull secret for the image's registry. Default: no secret.",
        ),
    ] = None,
    nodes: NodesOption = 1,
    replicas: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of server replicas. Each replica runs on --nodes nodes.",
        ),
    ] = 1,
    max_replicas: Annotated[
        int,
        typer.Option(min=1, help="Maximum number of server replicas that the autoscaler creates."),
    ] = 4,
    queue_target: Annotated[
        int,
        typer.Option(
            min=1,
            help="Average number of waiting requests per replica that the autoscaler maintains.",
        ),
    ] = 4,
    claim: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the PersistentVolumeClaim that contains a copy of TLLM_HOME. Default: "
            "no claim. The nodes then require the model's files at the same paths as on "
            "this machine.",
        ),
    ] = None,
    shared_memory: Annotated[
        str, typer.Option(metavar="QUANTITY", help="Size of /dev/shm in each pod.")
    ] = "1Gi",
    cpu: Annotated[
        str | None,
        typer.Option(
            metavar="QUANTITY",
            help="CPU request and limit of each pod. Default: no request and no limit.",
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="QUANTITY",
            help="Memory request and limit of each pod. Default: no request and no limit.",
        ),
    ] = None,
    gpu_resource: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Name of the GPU resource that each pod requests, for example "
            "nvidia.com/mig-1g.10gb.",
        ),
    ] = "nvidia.com/gpu",
    service_type: Annotated[
        ServiceType, typer.Option(help="Type of the Service that exposes the server.")
    ] = "ClusterIP",
    pod_monitor: Annotated[
        bool,
        typer.Option(
            help="Add a PodMonitor, so that the Prometheus operator collects the server's metrics."
        ),
    ] = True,
    openai_image: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            help="Container image with tllm, for a container that serves the OpenAI-compatible "
            "API in each pod. Default: the pods do not serve this API.",
        ),
    ] = None,
    openai_keys_secret: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the Secret that contains keys.json, the file in TLLM_HOME with the "
            "hashes of the API keys. Default: no Secret.",
        ),
    ] = None,
    openai_processes: OpenAiProcessesOption = 1,
    gateway: OptionValues,
    telemetry: OptionValues,
    timeout: Annotated[
        float,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="Maximum time to wait until the server is ready, in seconds.",
        ),
    ] = 600.0,
    hang_timeout: HangTimeoutOption = HANG_TIMEOUT_S,
    log_verbose: Annotated[
        int,
        typer.Option(
            min=0,
            max=3,
            help="Verbosity level of Triton's log. With 0, verbose messages are not logged.",
        ),
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Write the manifests that serve a model on Kubernetes.

    The server runs in a Deployment on a single node, or in a LeaderWorkerSet on several nodes. The
    manifests include a Service, an autoscaler that scales on the number of waiting requests, and a
    PodMonitor. With --json, the manifests are written as a single List. NVIDIA's images do not
    contain tllm, so the pods serve the OpenAI-compatible API only with --openai-image. Otherwise,
    run `tllm gateway` on another machine.

    Example:  tllm deploy k8s -m llama-3-8b --claim models | kubectl apply -f -
    """
    from trtllm_serve_cli.launch.clusters.kubernetes import KubernetesOptions, render_manifests
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
    launch_options = LaunchOptions(
        host="0.0.0.0",
        timeout_s=timeout,
        hang_timeout_s=hang_timeout,
        log_verbose=log_verbose,
        openai_processes=openai_processes,
        **gateway,
        **telemetry,
    )
    _check_openai(launch_options.openai, openai_image, openai_keys_secret, gateway)
    manifests = plan_kubernetes_here(
        find_home(),
        model,
        options,
        launch_options,
        openai_image=openai_image,
        keys_secret=openai_keys_secret,
    )
    _notify_openai(manifests, launch_options, has_gateway=openai_image is not None)
    if as_json and output_file is None:
        output.show_json(_as_list(manifests))
        return
    text = f"{json.dumps(_as_list(manifests), indent=2)}\n" if as_json else None
    _write_or_print(text or render_manifests(manifests), output_file, "kubectl apply -f")


def _check_openai(
    is_on: bool, image: str | None, keys_secret: str | None, values: OptionValues
) -> None:
    """Raise `BadParameter` if gateway options are set, but the pods do not run the gateway."""
    options = [f"--{name.replace('_', '-')}" for name in values if name != "openai"]
    if is_on and image is not None:
        return
    if image is not None:
        options.append("--openai-image")
    if keys_secret is not None:
        options.append("--openai-keys-secret")
    if options:
        fix = "Add --openai-image IMAGE." if is_on else "Omit --no-openai."
        raise typer.BadParameter(
            f"{options[0]} requires pods that serve the OpenAI-compatible API. {fix}",
            param_hint=options[0],
        )


def _notify_openai(
    manifests: list[dict[str, Any]], launch: LaunchOptions, *, has_gateway: bool
) -> None:
    """Print how to connect to the OpenAI-compatible API, or how to add the API to the pods."""
    if has_gateway:
        service = next(each for each in manifests if each["kind"] == "Service")["metadata"]
        namespace = f"-n {service['namespace']} " if "namespace" in service else ""
        port = launch.openai_port
        output.notify(
            f"OpenAI-compatible API: run `kubectl {namespace}port-forward "
            f"service/{service['name']} {port}`, then use http://127.0.0.1:{port}/v1"
        )
    elif launch.openai:
        output.notify(
            "The pods do not serve the OpenAI-compatible API, because Triton's image does not "
            "contain tllm. To serve the API, pass an image that contains tllm with "
            "--openai-image."
        )


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
            next_step="choose a file in a writable folder with -o FILE",
        ) from error
    output.notify(f"Next: {command} {shlex.quote(str(file))}")
