"""The manifests, validated against the schemas of Kubernetes and of the custom resources."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from tests.launch.clusters.kubernetes_samples import (
    GATEWAY,
    HOME,
    LLM_API,
    OLD,
    ON_TWO,
    PLAIN,
    SPREAD,
    WITH_WORKER,
    container,
    plan,
    templates,
)
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.clusters.kubernetes import (
    KubernetesOptions,
)
from trtllm_serve_cli.launch.clusters.pod_gateway import PodGateway
from trtllm_serve_cli.launch.containers.deployment import Deployable

# Required by the published custom resource definitions: kubernetes-sigs/lws
# (leaderworkerset.x-k8s.io_leaderworkersets.yaml) and prometheus-operator/prometheus-operator
# (monitoring.coreos.com_podmonitors.yaml). Pod templates in them are Kubernetes' own.
CUSTOM = {
    "LeaderWorkerSet": {
        "type": "object",
        "required": ["leaderWorkerTemplate"],
        "additionalProperties": False,
        "properties": {
            "replicas": {"type": "integer"},
            "startupPolicy": {"enum": ["LeaderCreated", "LeaderReady"]},
            "leaderWorkerTemplate": {
                "type": "object",
                "required": ["workerTemplate"],
                "additionalProperties": False,
                "properties": {
                    "size": {"type": "integer", "minimum": 1},
                    "restartPolicy": {"enum": ["Default", "RecreateGroupOnPodRestart", "None"]},
                    "leaderTemplate": {"type": "object"},
                    "workerTemplate": {"type": "object"},
                },
            },
        },
    },
    "PodMonitor": {
        "type": "object",
        "required": ["selector"],
        "additionalProperties": False,
        "properties": {
            "selector": {
                "type": "object",
                "properties": {"matchLabels": {"additionalProperties": {"type": "string"}}},
            },
            "podMetricsEndpoints": {
                "type": "array",
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "port": {"type": "string"},
                        "path": {"type": "string"},
                        "interval": {"type": "string", "pattern": r"^\d+(ms|s|m|h)$"},
                    },
                },
            },
        },
    },
}


@pytest.mark.parametrize("version", ["1.27", "1.31"])
@pytest.mark.parametrize(
    ("model", "options"),
    [
        (PLAIN, KubernetesOptions()),
        (WITH_WORKER, KubernetesOptions()),
        (OLD, KubernetesOptions()),
        (
            PLAIN,
            KubernetesOptions(
                namespace="llm", claim="models", cpu="8", memory="32Gi", replicas=2,
                image_pull_secret="ngc", gpu_resource="nvidia.com/mig-1g.10gb",
                service_type="LoadBalancer",
            ),
        ),
        (SPREAD, ON_TWO),
        (LLM_API, ON_TWO),
    ],
)  # fmt: skip
@pytest.mark.parametrize("gateway", [None, GATEWAY], ids=["triton", "gateway"])
def test_manifests_fit_their_schemas(
    model: Deployable, options: KubernetesOptions, version: str, gateway: PodGateway | None
) -> None:
    for kind, manifest in plan(model, options, gateway=gateway).items():
        if kind not in CUSTOM:
            kubernetes_validate.validate(manifest, version, strict=True)
            continue
        jsonschema.validate(manifest["spec"], CUSTOM[kind])
        for template in templates(manifest) if kind == "LeaderWorkerSet" else ():
            kubernetes_validate.validate(template, version, strict=True)


def test_kinds_of_manifests_for_one_node_and_for_several() -> None:
    assert list(plan()) == ["Deployment", "Service", "PodMonitor", "HorizontalPodAutoscaler"]
    assert list(plan(SPREAD, ON_TWO)) == [
        "ConfigMap", "ServiceAccount", "Role", "RoleBinding",
        "LeaderWorkerSet", "Service", "PodMonitor", "HorizontalPodAutoscaler",
    ]  # fmt: skip
    alone = KubernetesOptions(replicas=2, max_replicas=2, has_pod_monitor=False)
    assert list(plan(options=alone)) == ["Deployment", "Service"]


@pytest.mark.parametrize(("replicas", "max_replicas"), [(3, 2), (8, 4)])
def test_lower_maximum_of_replicas_is_refused(replicas: int, max_replicas: int) -> None:
    with pytest.raises(BadInput) as raised:
        plan(options=KubernetesOptions(replicas=replicas, max_replicas=max_replicas))
    assert raised.value.why == f"--max-replicas is {max_replicas}, and --replicas is {replicas}"
    assert f"or --max-replicas {replicas} to deploy without" in raised.value.next_step


def test_ports_of_triton_are_named() -> None:
    assert container(plan()["Deployment"])["ports"] == [
        {"name": "http", "containerPort": 8000},
        {"name": "grpc", "containerPort": 8001},
        {"name": "metrics", "containerPort": 8002},
    ]


def test_only_the_leader_of_several_pods_may_run_commands_in_other_pods() -> None:
    made = plan(SPREAD, ON_TWO)
    (leader, worker) = (each["template"]["spec"] for each in templates(made["LeaderWorkerSet"]))
    alone = plan()["Deployment"]["spec"]["template"]["spec"]
    assert [each["automountServiceAccountToken"] for each in (leader, worker, alone)] == [
        True, False, False,
    ]  # fmt: skip
    assert [each.get("serviceAccountName") for each in (leader, worker, alone)] == [
        "tllm-llama-3-1", None, None,
    ]  # fmt: skip
    assert [(each["resources"], each["verbs"]) for each in made["Role"]["rules"]] == [
        (["pods"], ["get"]),
        (["pods/exec"], ["create"]),
    ]
    assert made["RoleBinding"]["subjects"] == [
        {"kind": "ServiceAccount", "name": "tllm-llama-3-1", "namespace": "llm"}
    ]


def test_ranks_of_all_pods_have_the_same_environment() -> None:
    (leader, worker) = (
        each["template"]["spec"]["containers"][0]["env"]
        for each in templates(plan(SPREAD, ON_TWO, log_format="json")["LeaderWorkerSet"])
    )
    assert {"name": "OPENBLAS_NUM_THREADS", "value": "1"} in worker
    assert {"name": "TLLM_LOG_FORMAT", "value": "json"} in worker
    assert [each["name"] for each in leader if each not in worker] == ["POD_NAME"]


def test_rollout_may_take_as_long_as_the_start_and_the_image_pull() -> None:
    spec = plan(timeout_s=3600.5)["Deployment"]["spec"]
    assert spec["progressDeadlineSeconds"] == 3601 + 600


def test_model_is_mounted_from_the_nodes_at_the_same_paths() -> None:
    manifest = plan()["Deployment"]
    volumes = manifest["spec"]["template"]["spec"]["volumes"]
    assert volumes == [
        {"name": "model-0", "hostPath": {"path": str(PLAIN.folders[0]), "type": "Directory"}},
        {"name": "model-1", "hostPath": {"path": str(PLAIN.folders[1]), "type": "Directory"}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    ]
    assert [each["mountPath"] for each in container(manifest)["volumeMounts"]] == [
        *map(str, PLAIN.folders), "/dev/shm",
    ]  # fmt: skip


def test_model_is_mounted_from_a_claim_by_subpath() -> None:
    manifest = plan(options=KubernetesOptions(claim="models"))["Deployment"]
    assert container(manifest)["volumeMounts"][0] == {
        "name": "model",
        "mountPath": "/home/me/tllm/models/Llama_3.1",
        "subPath": "models/Llama_3.1",
        "readOnly": True,
    }


def test_every_container_mounts_the_model_read_only() -> None:
    specs = [
        plan(options=each)["Deployment"]["spec"]["template"]["spec"]
        for each in (KubernetesOptions(), KubernetesOptions(claim="models"))
    ]
    specs += [
        each["template"]["spec"] for each in templates(plan(SPREAD, ON_TWO)["LeaderWorkerSet"])
    ]
    folders = set(map(str, PLAIN.folders))
    for spec in specs:
        for each in spec["containers"]:
            mounts = [mount for mount in each["volumeMounts"] if mount["mountPath"] in folders]
            assert [mount.get("readOnly") for mount in mounts] == [True] * len(folders)


def test_resources_are_divided_among_nodes() -> None:
    (leader, worker) = templates(plan(SPREAD, ON_TWO)["LeaderWorkerSet"])
    for template in (leader, worker):
        resources = template["template"]["spec"]["containers"][0]["resources"]
        assert resources == {
            "requests": {"nvidia.com/gpu": "8"},
            "limits": {"nvidia.com/gpu": "8"},
        }
    part = KubernetesOptions(gpu_resource="nvidia.com/mig-1g.10gb")
    limits = container(plan(options=part)["Deployment"])["resources"]["limits"]
    assert limits == {"nvidia.com/mig-1g.10gb": "1"}
    cpu = dataclasses.replace(PLAIN, num_gpus=0, kind="openvino")
    assert container(plan(cpu)["Deployment"])["resources"] == {}


def test_selectors_exclude_worker_pods() -> None:
    made = plan(SPREAD, ON_TWO)
    selector = made["Service"]["spec"]["selector"]
    leader, worker = (each["template"]["metadata"]["labels"] for each in templates(
        made["LeaderWorkerSet"]))  # fmt: skip
    assert made["PodMonitor"]["spec"]["selector"] == {"matchLabels": selector}
    assert selector.items() <= leader.items()
    assert not selector.items() <= worker.items()


@pytest.mark.parametrize("reports_waiting", [True, False])
def test_autoscaler_counts_pending_requests_of_triton_and_the_engine(reports_waiting: bool) -> None:
    model = dataclasses.replace(PLAIN, reports_waiting=reports_waiting)
    spec = plan(model)["HorizontalPodAutoscaler"]["spec"]
    target = {"type": "AverageValue", "averageValue": "4"}
    queues: list[dict[str, Any]] = [{"name": "nv_inference_pending_request_count"}]
    if reports_waiting:
        waiting = {"matchLabels": {"request_type": "waiting"}}
        queues.append({"name": "nv_trt_llm_request_metrics", "selector": waiting})
    assert spec == {
        "scaleTargetRef": {
            "apiVersion": "apps/v1", "kind": "Deployment", "name": "tllm-llama-3-1",
        },
        "minReplicas": 1,
        "maxReplicas": 4,
        "metrics": [
            {"type": "Pods", "pods": {"metric": queue, "target": target}} for queue in queues
        ],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (SPREAD, KubernetesOptions(nodes=2), "needs a custom image to run on 2 nodes"),
        (PLAIN, ON_TWO, "cannot be distributed across 2 nodes"),
        (
            SPREAD,
            KubernetesOptions(nodes=3, image="i"),
            "16 ranks cannot be divided evenly among 3",
        ),
        (
            dataclasses.replace(PLAIN, image=None, needs="an unknown backend"),
            KubernetesOptions(),
            "No public container image can serve Llama_3.1",
        ),
        (
            dataclasses.replace(PLAIN, folders=(HOME / "models" / "l", Path("/data/engine"))),
            KubernetesOptions(claim="models"),
            "The claim models does not contain all of the files that Llama_3.1 uses",
        ),
        (PLAIN, KubernetesOptions(namespace="UPPER"), "'UPPER' is not a valid namespace"),
        (PLAIN, KubernetesOptions(memory="16GB"), "'16GB' is not a valid Kubernetes quantity"),
        (PLAIN, KubernetesOptions(cpu="4 cores"), "'4 cores' is not a valid Kubernetes quantity"),
        (PLAIN, KubernetesOptions(shared_memory=""), "'' is not a valid Kubernetes quantity"),
    ],
)
def test_plan_rejects_impossible_options(
    model: Deployable, options: KubernetesOptions, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        plan(model, options)
