"""`tllm deploy k8s`: write Kubernetes manifests that serve a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from trtllm_serve_cli.choices import ServiceType
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

# Default of --max-replicas, unless --replicas is greater.
_MAX_REPLICAS = 4


@accepts_name()
@takes_options(
    gateway=option_fields(LaunchOptions, "openai_port", *POD_GATEWAY), telemetry=TELEMETRY
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
            help="Kubernetes namespace to set in the manifests. Default: no namespace, or "
            "`default` if --nodes is greater than 1.",
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            help="Triton container image. If --nodes is greater than 1, this option is required, "
            "and the image must also contain kubectl. Default: the NVIDIA image that matches the "
            "engine."
        ),
    ] = None,
    image_pull_secret: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Image pull secret for the container registry. Default: no secret.",
        ),
    ] = None,
    nodes: NodesOption = 1,
    replicas: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of server replicas, and minimum for the autoscaler. Each replica runs on "
            "--nodes nodes.",
        ),
    ] = 1,
    max_replicas: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of server replicas that the autoscaler creates. If the value "
            "equals --replicas, the manifests do not contain an autoscaler. The value cannot be "
            f"less than --replicas. Default: {_MAX_REPLICAS}, or --replicas if greater.",
        ),
    ] = None,
    queue_target: Annotated[
        int,
        typer.Option(
            min=1,
            help="Average number of waiting requests per replica that the autoscaler targets.",
        ),
    ] = 4,
    claim: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="PersistentVolumeClaim that contains a copy of TLLM_HOME. Default: no claim. "
            "Without a claim, the nodes must have the model files at the same paths as this "
            "machine.",
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
            help="GPU resource that each pod requests, for example nvidia.com/mig-1g.10gb.",
        ),
    ] = "nvidia.com/gpu",
    service_type: Annotated[
        ServiceType, typer.Option(help="Type of the Service that exposes the server.")
    ] = "ClusterIP",
    pod_monitor: Annotated[
        bool,
        typer.Option(
            help="Add a PodMonitor so that Prometheus scrapes the server's metrics. Requires the "
            "Prometheus Operator."
        ),
    ] = True,
    openai_image: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            help="Image for a sidecar container that serves the OpenAI-compatible API. The image "
            "must contain tllm. Default: no sidecar container.",
        ),
    ] = None,
    openai_keys_secret: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of a Secret whose key `keys.json` contains the API key hashes: the file "
            "TLLM_HOME/keys.json. Default: no Secret.",
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
            help="Maximum time for the models to load, in seconds. If loading takes longer, "
            "Kubernetes restarts the container.",
        ),
    ] = 600.0,
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
    """Write Kubernetes manifests that serve a model.

    The server runs in a Deployment on a single node, or in a LeaderWorkerSet on several nodes. The
    manifests include a Service and, by default, an autoscaler that scales on the number of waiting
    requests, and a PodMonitor. With --json, the manifests are written as a single List. NVIDIA's
    images do not contain tllm, so the pods serve the OpenAI-compatible API only with
    --openai-image. Otherwise, run `tllm gateway` on another machine.

    Example:  tllm deploy k8s -m llama-3-8b --claim models | kubectl apply -f -
    """
    from trtllm_serve_cli.launch.clusters.kubernetes import KubernetesOptions, render_manifests
    from trtllm_serve_cli.launch.servers.deploy import plan_kubernetes_here
    from trtllm_serve_cli.paths import find_home
    from trtllm_serve_cli.repository.model.store import load_model

    if max_replicas is None:
        max_replicas = max(replicas, _MAX_REPLICAS)
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
    flags = list_gateway_flags(gateway, openai_processes)
    _check_openai(launch_options.openai, openai_image, openai_keys_secret, flags)
    home = find_home()
    notify_other_runtimes([load_model(home, model).path])
    manifests = plan_kubernetes_here(
        home,
        model,
        options,
        launch_options,
        openai_image=openai_image,
        keys_secret=openai_keys_secret,
    )
    if replicas == max_replicas:
        output.notify(
            "The manifests do not contain an autoscaler, because --replicas and --max-replicas "
            f"are both {replicas}."
        )
    _notify_openai(manifests, launch_options, has_gateway=openai_image is not None)
    if as_json and output_file is None:
        output.show_json(_as_list(manifests))
        return
    text = f"{json.dumps(_as_list(manifests), indent=2)}\n" if as_json else None
    write_or_print(text or render_manifests(manifests), output_file, "kubectl apply -f")


def _check_openai(
    is_on: bool, image: str | None, keys_secret: str | None, flags: Sequence[str]
) -> None:
    """Raise `BadParameter` if gateway options are set, but the pods do not run the gateway.

    `flags` are the gateway options except those for the image and the Secret.
    """
    options = [*flags]
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
    """Print how to connect to the OpenAI-compatible API, or how to add the API to the pods.

    Print nothing if the user omitted the API with --no-openai.
    """
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
            "The pods do not serve the OpenAI-compatible API, because --openai-image is not set. "
            "To serve the API, pass an image that contains tllm with --openai-image."
        )


def _as_list(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": manifests}
