"""Plan the Kubernetes manifests for serving a model.

A single-node model runs in a Deployment. A multi-node model runs in a LeaderWorkerSet
(lws.sigs.k8s.io). The leader pod starts the engine's ranks in the worker pods with MPI, which uses
`kubectl exec` instead of ssh. The LeaderWorkerSet and the HTTP probes follow the guides in
triton-inference-server/tutorials (Deployment/Kubernetes).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_serve_cli.choices import ServiceType
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.clusters.pod_gateway import (
    PodGateway,
    add_gateway,
    check_gateway,
    gateway_annotations,
    gateway_config_map,
    gateway_data,
    service_ports,
)
from trtllm_serve_cli.launch.clusters.pod_probes import plan_probes
from trtllm_serve_cli.launch.clusters.pod_script import AGENT_FOLDER, PORTS, pod_script
from trtllm_serve_cli.launch.containers.deployment import (
    Deployable,
    check_image,
    check_nodes,
    split_evenly,
)
from trtllm_serve_cli.launch.launch_options import DRAIN_S, LaunchOptions
from trtllm_serve_cli.launch.triton.telemetry_env import telemetry_environ
from trtllm_serve_cli.metrics.catalog import PENDING
from trtllm_serve_cli.processes import SINGLE_THREADED
from trtllm_serve_cli.rendering import render
from trtllm_serve_cli.runtime.telemetry.families import ENGINE_REQUESTS

Manifest = dict[str, Any]

# Duration of the preStop hook in seconds. The hook delays SIGTERM, because a terminating pod still
# receives new requests for a few seconds.
_PRE_STOP_S = 5
# Time, in seconds, that a pod may need before the server starts. A node needs minutes to pull an
# NVIDIA image of many gigabytes. Kubernetes allows the same time for a whole rollout by default.
_IMAGE_PULL_S = 600
# Matches a non-negative amount of CPU or memory.
_QUANTITY = re.compile(r"(\d+(\.\d*)?|\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?")
# Matches a DNS label as defined in RFC 1123.
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """The options for `tllm deploy k8s`.

    - `nodes`: number of nodes per replica.
    - `replicas`, `max_replicas`: minimum and maximum number of replicas. If they are equal, the
      manifests do not contain an autoscaler. Otherwise, an autoscaler adds a replica when more than
      `queue_target` requests per replica are waiting.
    - `claim`: name of a PersistentVolumeClaim that contains a copy of TLLM_HOME. If None, the nodes
      must have the model at the same paths as this machine.
    - `shared_memory`, `cpu`, `memory`: Kubernetes resource quantities.
    - `gpu_resource`: name of the extended resource to request, for whole GPUs or MIG devices.
    - `has_pod_monitor`: true if the manifests include a PodMonitor for Prometheus.
    """

    namespace: str | None = None
    image: str | None = None
    image_pull_secret: str | None = None
    nodes: int = 1
    replicas: int = 1
    max_replicas: int = 4
    queue_target: int = 4
    claim: str | None = None
    shared_memory: str = "1Gi"
    cpu: str | None = None
    memory: str | None = None
    gpu_resource: str = "nvidia.com/gpu"
    service_type: ServiceType = "ClusterIP"
    has_pod_monitor: bool = True


def plan_kubernetes(
    model: Deployable,
    options: KubernetesOptions,
    launch: LaunchOptions,
    *,
    home: Path,
    gateway: PodGateway | None = None,
) -> list[Manifest]:
    """Return the manifests for serving `model`, in the order in which to apply them.

    `home` is TLLM_HOME. `gateway` is None if the pods run only Triton. Raise `BadInput` if an
    option is not valid or does not fit the model, or if the gateway could not serve requests.
    """
    check_nodes(model, options.nodes)
    _check_namespace(options.namespace)
    _check_quantities(options)
    _check_replicas(options)
    if options.nodes > 1 and options.image is None:
        raise BadInput(
            f"{model.name} needs a custom image to run on {options.nodes} nodes.",
            why="the leader pod starts ranks in the other pods with kubectl, which NVIDIA's images "
            "do not contain",
            next_step="run `tllm deploy k8s` without --nodes to find the NVIDIA image, build an "
            "image that adds kubectl to it, and pass the new image with --image",
        )
    if gateway is not None:
        check_gateway(gateway, options.max_replicas)
    name = _object_name(model.name)
    pod = _pod(model, options, launch, home, has_gateway=gateway is not None)
    is_spread = options.nodes > 1
    # A multi-node model needs an explicit namespace, because its RoleBinding must name the
    # subject's namespace.
    namespace = options.namespace or ("default" if is_spread else None)
    manifests = [
        *(_agent_manifests(name, namespace) if is_spread else ()),
        *((_object("v1", "ConfigMap", gateway_config_map(name), data=gateway_data(gateway)),)
          if gateway else ()),
        _leader_worker_set(model, name, options, pod, gateway) if is_spread else
        _deployment(name, options, launch, _server_template(name, pod, gateway)),
        _service(name, options, service_ports(gateway) if gateway else []),
        *((_pod_monitor(name),) if options.has_pod_monitor else ()),
        *((_autoscaler(model, name, options),) if options.max_replicas > options.replicas else ()),
    ]  # fmt: skip
    return [_with_namespace(each, namespace) for each in manifests]


def _check_replicas(options: KubernetesOptions) -> None:
    """Raise `BadInput` if the maximum number of replicas is less than the minimum."""
    minimum, maximum = options.replicas, options.max_replicas
    if maximum < minimum:
        raise BadInput(
            f"The maximum of {maximum} replicas is less than the {minimum} replicas to start.",
            why=f"--max-replicas is {maximum}, and --replicas is {minimum}",
            next_step=f"add --max-replicas N with N greater than {minimum}, or "
            f"--max-replicas {minimum} to deploy without an autoscaler",
        )


def _check_namespace(namespace: str | None) -> None:
    if namespace is not None and not _LABEL.fullmatch(namespace):
        raise BadInput(
            f"{namespace!r} is not a valid namespace.",
            why="a namespace can contain at most 63 lowercase letters, digits and hyphens, and it "
            "must start and end with a letter or digit",
            next_step="pass a valid name with --namespace; `kubectl get namespaces` lists the "
            "existing namespaces",
        )


def _check_quantities(options: KubernetesOptions) -> None:
    """Raise `BadInput` if an amount of CPU or memory is not a Kubernetes quantity."""
    quantities = {
        "--shared-memory": options.shared_memory, "--cpu": options.cpu, "--memory": options.memory,
    }  # fmt: skip
    for flag, quantity in quantities.items():
        if quantity is not None and not _QUANTITY.fullmatch(quantity):
            raise BadInput(
                f"{quantity!r} is not a valid Kubernetes quantity.",
                why="a quantity is a number with an optional unit such as m, M, G, Mi or Gi",
                next_step=f"pass a valid quantity, for example {flag} "
                f"{'4' if flag == '--cpu' else '16Gi'}",
            )


def render_manifests(manifests: Sequence[Manifest]) -> str:
    """Return the manifests as a multi-document YAML string."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """A YAML dumper that writes multi-line strings as blocks and does not use aliases."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    def show_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = "|" if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, show_text)
    return yaml.dump_all(manifests, Dumper=Dumper, sort_keys=False, explicit_start=True, width=1000)


def _object_name(model: str) -> str:
    """Return a valid Service name for `model` that leaves room for suffixes in pod names."""
    return f"tllm-{re.sub('[^a-z0-9]+', '-', model.lower())}"[:50].strip("-")


def _labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "tllm", "app.kubernetes.io/instance": name}


def _server_labels(name: str) -> dict[str, str]:
    """Return the labels of pods that serve requests. Worker pods have no component label."""
    return {**_labels(name), "app.kubernetes.io/component": "server"}


def _with_namespace(manifest: Manifest, namespace: str | None) -> Manifest:
    if namespace is None:
        return manifest
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}}


def _object(api: str, kind: str, name: str, **fields: Any) -> Manifest:
    metadata = {"name": name, "labels": _labels(name)}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **fields}


def _server_template(name: str, pod: Manifest, gateway: PodGateway | None) -> Manifest:
    """Return the pod template for the pods that serve requests."""
    metadata: Manifest = {"labels": _server_labels(name)}
    if gateway is not None:
        metadata["annotations"] = gateway_annotations(gateway)
        pod = add_gateway(pod, name, gateway, _PRE_STOP_S)
    return {"metadata": metadata, "spec": pod}


def _deployment(
    name: str, options: KubernetesOptions, launch: LaunchOptions, template: Manifest
) -> Manifest:
    spec = {
        "replicas": options.replicas,
        "progressDeadlineSeconds": math.ceil(launch.timeout_s) + _IMAGE_PULL_S,
        "selector": {"matchLabels": _server_labels(name)},
        # Delete the old pod first. Otherwise, the new pod may wait forever for GPUs that the old
        # pod uses.
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
        },
        "template": template,
    }
    return _object("apps/v1", "Deployment", name, spec=spec)


def _leader_worker_set(
    model: Deployable,
    name: str,
    options: KubernetesOptions,
    pod: Manifest,
    gateway: PodGateway | None,
) -> Manifest:
    (server,) = pod["containers"]
    agent = {"name": "agent", "configMap": {"name": name, "defaultMode": 0o755}}
    mount = {"name": "agent", "mountPath": AGENT_FOLDER, "readOnly": True}
    pod_name = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    # Ranks in worker pods get the environment of the worker's container from `kubectl exec`.
    keys = ("image", "imagePullPolicy", "env", "resources", "volumeMounts")
    shared = {key: server[key] for key in keys}
    script = render("kubernetes/worker.sh.j2")
    worker = {"name": "worker", **shared, "command": ["bash", "-c", script]}
    leader_pod = {
        **pod,
        "serviceAccountName": name,
        "automountServiceAccountToken": True,
        "containers": [
            {
                **server,
                "env": [*server["env"], pod_name],
                "volumeMounts": [*server["volumeMounts"], mount],
            }
        ],
        "volumes": [*pod["volumes"], agent],
    }
    leader_template = _server_template(name, leader_pod, gateway)
    # The ranks in worker pods run until the leader has drained.
    grace = "terminationGracePeriodSeconds"
    worker_pod = {**pod, "containers": [worker], grace: leader_template["spec"][grace]}
    spec = {
        "replicas": options.replicas,
        "leaderWorkerTemplate": {
            "size": options.nodes,
            # Restart all pods in the group, because an engine fails if one of its ranks exits.
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": leader_template,
            "workerTemplate": {"metadata": {"labels": _labels(name)}, "spec": worker_pod},
        },
    }
    return _object("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", name, spec=spec)


def _agent_manifests(name: str, namespace: str | None) -> list[Manifest]:
    """Return the manifests that let the leader pod run commands in the worker pods."""
    api = "rbac.authorization.k8s.io"
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]},
    ]
    return [
        _object("v1", "ConfigMap", name, data={"kubessh": render("kubernetes/kubessh.sh.j2")}),
        _object("v1", "ServiceAccount", name),
        _object(f"{api}/v1", "Role", name, rules=rules),
        _object(
            f"{api}/v1",
            "RoleBinding",
            name,
            roleRef={"apiGroup": api, "kind": "Role", "name": name},
            subjects=[{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        ),
    ]


def _pod(
    model: Deployable,
    options: KubernetesOptions,
    launch: LaunchOptions,
    home: Path,
    *,
    has_gateway: bool,
) -> Manifest:
    volumes, mounts = _model_volumes(model, options, home)
    shared = {"medium": "Memory", "sizeLimit": options.shared_memory}
    script = pod_script(model, launch, nodes=options.nodes, has_gateway=has_gateway)
    environ = {**SINGLE_THREADED, **telemetry_environ(launch)}
    container = {
        "name": "triton",
        "image": check_image(model, options.image),
        "imagePullPolicy": "IfNotPresent",
        "command": ["bash", "-c", script],
        "ports": [{"name": name, "containerPort": port} for name, port in PORTS.items()],
        **plan_probes(model, launch),
        "env": [{"name": name, "value": value} for name, value in environ.items()],
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(_PRE_STOP_S)]}}},
        "resources": _resources(model, options),
        "volumeMounts": [*mounts, {"name": "shared-memory", "mountPath": "/dev/shm"}],
    }
    pod = {
        "containers": [container],
        # Only the leader pod of a multi-node model needs access to the Kubernetes API.
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": DRAIN_S + _PRE_STOP_S + 10,
        "volumes": [*volumes, {"name": "shared-memory", "emptyDir": shared}],
    }
    if model.num_gpus:
        taint = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
        pod["tolerations"] = [taint]
    if options.image_pull_secret is not None:
        pod["imagePullSecrets"] = [{"name": options.image_pull_secret}]
    return pod


def _resources(model: Deployable, options: KubernetesOptions) -> Manifest:
    gpus = split_evenly(model.num_gpus, options.nodes, "GPUs")
    amounts = {
        "cpu": options.cpu,
        "memory": options.memory,
        options.gpu_resource: str(gpus) if gpus else None,
    }
    quantities = {name: quantity for name, quantity in amounts.items() if quantity is not None}
    return {"requests": quantities, "limits": quantities} if quantities else {}


def _model_volumes(
    model: Deployable, options: KubernetesOptions, home: Path
) -> tuple[list[Manifest], list[Manifest]]:
    """Return the volumes and volume mounts for the model's folders.

    The mount paths in the pods are the same as the folder paths on this machine. Raise `BadInput`
    if `options.claim` is set but a folder is outside TLLM_HOME.
    """
    if options.claim is None:
        names = [f"model-{number}" for number in range(len(model.folders))]
        pairs = list(zip(names, model.folders, strict=True))
        return (
            [{"name": name, "hostPath": {"path": str(path), "type": "Directory"}}
             for name, path in pairs],
            [{"name": name, "mountPath": str(path), "readOnly": True} for name, path in pairs],
        )  # fmt: skip
    outside = [str(path) for path in model.folders if home not in path.parents]
    if outside:
        raise BadInput(
            f"The claim {options.claim} does not contain all of the files that {model.name} uses.",
            why=(
                f"the pods use the claim as a copy of TLLM_HOME ({home}), but these folders are "
                f"outside TLLM_HOME: {', '.join(outside)}"
            ),
            next_step="omit --claim if every node has these folders at the same paths; otherwise, "
            "import the model again without --engine-dir and --repo, or copy the LoRA adapters to "
            "a folder in TLLM_HOME and set --lora, --runtime-lora-dir or lora_prefetch_dir to it",
        )
    claim = {"claimName": options.claim, "readOnly": True}
    return [{"name": "model", "persistentVolumeClaim": claim}], [
        {
            "name": "model",
            "mountPath": str(path),
            "subPath": str(path.relative_to(home)),
            "readOnly": True,
        }
        for path in model.folders
    ]


def _service(name: str, options: KubernetesOptions, more_ports: Sequence[Manifest]) -> Manifest:
    ports = [{"name": port, "port": number, "targetPort": port} for port, number in PORTS.items()]
    ports += more_ports
    spec = {"type": options.service_type, "selector": _server_labels(name), "ports": ports}
    return _object("v1", "Service", name, spec=spec)


def _pod_monitor(name: str) -> Manifest:
    spec = {
        "selector": {"matchLabels": _server_labels(name)},
        "podMetricsEndpoints": [{"port": "metrics", "path": "/metrics", "interval": "10s"}],
    }
    return _object("monitoring.coreos.com/v1", "PodMonitor", name, spec=spec)


def _autoscaler(model: Deployable, name: str, options: KubernetesOptions) -> Manifest:
    """Return an autoscaler that targets `options.queue_target` waiting requests per replica.

    The autoscaler counts the requests that wait in Triton. If the engine reports the requests that
    wait in the engine, the autoscaler also compares their number with the target.
    """
    metrics: list[Manifest] = [{"name": PENDING.name}]
    if model.reports_waiting:
        waiting = {"matchLabels": ENGINE_REQUESTS.own_label("waiting")}
        metrics.append({"name": ENGINE_REQUESTS.name, "selector": waiting})
    target = {"type": "AverageValue", "averageValue": str(options.queue_target)}
    api, kind = (
        ("apps/v1", "Deployment")
        if options.nodes == 1
        else ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
    )
    spec = {
        "scaleTargetRef": {"apiVersion": api, "kind": kind, "name": name},
        "minReplicas": options.replicas,
        "maxReplicas": options.max_replicas,
        "metrics": [
            {"type": "Pods", "pods": {"metric": metric, "target": target}} for metric in metrics
        ],
    }
    return _object("autoscaling/v2", "HorizontalPodAutoscaler", name, spec=spec)
