"""The manifests, against the schemas that Kubernetes and the custom resources have."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import psutil
import pytest
import yaml

from tests.waiting import wait_until
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.deployment import Deployable
from trtllm_serve_cli.launch.kubernetes import (
    KubernetesOptions,
    Manifest,
    plan_kubernetes,
    render_manifests,
)
from trtllm_serve_cli.launch.options import LaunchOptions

HOME = Path("/home/me/tllm")
PLAIN = Deployable(
    name="Llama_3.1",
    text_model="Llama_3.1",
    kind="tensorrt",
    models=("preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "Llama_3.1"),
    repository=HOME / "models" / "Llama_3.1",
    folders=(HOME / "models" / "Llama_3.1", HOME / "engines" / "llama"),
    num_gpus=1,
    num_ranks=1,
    image="nvcr.io/nvidia/tritonserver:25.03-trtllm-python-py3",
    reports_waiting=True,
)
SPREAD = dataclasses.replace(PLAIN, num_gpus=16, num_ranks=16)
LLM_API = dataclasses.replace(SPREAD, kind="pytorch")
ON_TWO = KubernetesOptions(nodes=2, image="triton-with-kubectl", namespace="llm")

# What the published custom resource definitions ask for: kubernetes-sigs/lws
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


def plan(
    model: Deployable = PLAIN, options: KubernetesOptions | None = None, timeout_s: float = 600.0
) -> dict[str, Manifest]:
    """The manifests by kind, as they are read out of their YAML."""
    launch = LaunchOptions(host="0.0.0.0", timeout_s=timeout_s)
    made = plan_kubernetes(model, options or KubernetesOptions(), launch, home=HOME)
    read = list(yaml.safe_load_all(render_manifests(made)))
    assert read == made
    return {each["kind"]: each for each in read}


def templates(manifest: Manifest) -> list[Manifest]:
    template = manifest["spec"]["leaderWorkerTemplate"]
    return [
        {"apiVersion": "v1", "kind": "PodTemplate", "template": template[name]}
        for name in ("leaderTemplate", "workerTemplate")
    ]


@pytest.mark.parametrize("version", ["1.27", "1.31"])
@pytest.mark.parametrize(
    ("model", "options"),
    [
        (PLAIN, KubernetesOptions()),
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
def test_manifests_fit_their_schemas(
    model: Deployable, options: KubernetesOptions, version: str
) -> None:
    for kind, manifest in plan(model, options).items():
        if kind not in CUSTOM:
            kubernetes_validate.validate(manifest, version, strict=True)
            continue
        jsonschema.validate(manifest["spec"], CUSTOM[kind])
        for template in templates(manifest) if kind == "LeaderWorkerSet" else ():
            kubernetes_validate.validate(template, version, strict=True)


def test_what_comes_with_one_node_and_with_several() -> None:
    assert list(plan()) == ["Deployment", "Service", "PodMonitor", "HorizontalPodAutoscaler"]
    assert list(plan(SPREAD, ON_TWO)) == [
        "ConfigMap", "ServiceAccount", "Role", "RoleBinding",
        "LeaderWorkerSet", "Service", "PodMonitor", "HorizontalPodAutoscaler",
    ]  # fmt: skip
    alone = KubernetesOptions(replicas=2, max_replicas=2, has_pod_monitor=False)
    assert list(plan(options=alone)) == ["Deployment", "Service"]


def container(manifest: Manifest) -> dict[str, Any]:
    (only,) = manifest["spec"]["template"]["spec"]["containers"]
    return dict(only)


def test_probes_ask_what_triton_says_of_itself() -> None:
    server = container(plan(timeout_s=95)["Deployment"])
    fields = ("httpGet", "periodSeconds", "failureThreshold")
    asked = {
        name: tuple(server[name][field] for field in fields)
        for name in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert asked == {
        "startupProbe": ({"path": "/v2/health/ready", "port": "http"}, 10, 10),
        "readinessProbe": ({"path": "/v2/health/ready", "port": "http"}, 5, 3),
        "livenessProbe": ({"path": "/v2/health/live", "port": "http"}, 10, 3),
    }
    assert server["ports"] == [
        {"name": "http", "containerPort": 8000},
        {"name": "grpc", "containerPort": 8001},
        {"name": "metrics", "containerPort": 8002},
    ]


def test_model_comes_from_the_nodes_at_its_own_paths() -> None:
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


def test_model_comes_from_a_claim_as_a_copy_of_the_home() -> None:
    manifest = plan(options=KubernetesOptions(claim="models"))["Deployment"]
    assert container(manifest)["volumeMounts"][0] == {
        "name": "model",
        "mountPath": "/home/me/tllm/models/Llama_3.1",
        "subPath": "models/Llama_3.1",
        "readOnly": True,
    }


def test_resources_are_shared_out_among_nodes() -> None:
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


def test_only_pods_that_answer_are_asked_and_counted() -> None:
    made = plan(SPREAD, ON_TWO)
    selector = made["Service"]["spec"]["selector"]
    leader, worker = (each["template"]["metadata"]["labels"] for each in templates(
        made["LeaderWorkerSet"]))  # fmt: skip
    assert made["PodMonitor"]["spec"]["selector"] == {"matchLabels": selector}
    assert selector.items() <= leader.items()
    assert not selector.items() <= worker.items()


@pytest.mark.parametrize("reports_waiting", [True, False])
def test_autoscaler_counts_who_waits_in_triton_and_in_the_engine(reports_waiting: bool) -> None:
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


def told(model: Deployable, options: KubernetesOptions, tmp_path: Path) -> list[str]:
    """What the pod's script runs, by a bash that has a `kubectl` and an `mpirun` that tell it."""
    made = plan(model, options)
    workload = made.get("LeaderWorkerSet") or made["Deployment"]
    (server, *_) = (
        [each["template"]["spec"]["containers"][0] for each in templates(workload)]
        if workload["kind"] == "LeaderWorkerSet"
        else [container(workload)]
    )
    for name, body in (("kubectl", "exit 0"), ("mpirun", 'printf "%s\\n" mpirun "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "POD_NAME": "tllm-llama-3-1-0"}
    answer = subprocess.run(
        server["command"], env=environ, capture_output=True, text=True, check=True
    )
    return answer.stdout.splitlines()


def test_leader_starts_a_rank_per_gpu_and_answers_itself(tmp_path: Path) -> None:
    words = told(SPREAD, ON_TWO, tmp_path)
    hosts = "tllm-llama-3-1-0:8,tllm-llama-3-1-0-1:8"
    assert words[:10] == [
        "mpirun", "--allow-run-as-root", "--mca", "plm_rsh_agent", "/opt/tllm/kubessh",
        "--host", hosts, "--bind-to", "none", "-n",
    ]  # fmt: skip
    split = words.index(":")
    first, others = words[10:split], words[split + 1 :]
    assert first[:2] == ["1", "/opt/tritonserver/bin/tritonserver"]
    assert {"--http-port=8000", "--http-address=0.0.0.0"} <= set(first)
    assert others == [
        "-n", "15", "/opt/tritonserver/bin/tritonserver",
        "--model-repository=/home/me/tllm/models/Llama_3.1", "--disable-auto-complete-config",
        "--allow-http=false", "--allow-grpc=false", "--allow-metrics=false",
        "--model-control-mode=explicit", "--load-model=tensorrt_llm",
    ]  # fmt: skip


def test_llm_api_has_its_launcher_on_every_rank(tmp_path: Path) -> None:
    words = told(LLM_API, ON_TWO, tmp_path)
    assert words[9:13] == [
        "-n", "16", "trtllm-llmapi-launch", "/opt/tritonserver/bin/tritonserver",
    ]  # fmt: skip
    assert ":" not in words


def test_several_gpus_of_one_node_need_no_agent(tmp_path: Path) -> None:
    model = dataclasses.replace(PLAIN, num_gpus=4, num_ranks=4)
    words = told(model, KubernetesOptions(), tmp_path)
    assert words[:7] == [
        "mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", "1",
        "/opt/tritonserver/bin/tritonserver",
    ]  # fmt: skip


def test_instances_on_gpus_of_their_own_are_spawned(tmp_path: Path) -> None:
    """gpu_device_ids 0,1;2,3: upstream's orchestrator mode, as `tllm start --mode mpi` has it."""
    model = dataclasses.replace(PLAIN, num_gpus=4, num_ranks=1, spawns=True)
    words = told(model, KubernetesOptions(), tmp_path)
    assert words[4:11] == [
        "-n", "1", "-x", "TRTLLM_ORCHESTRATOR=1", "-x", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES=1",
        "/opt/tritonserver/bin/tritonserver",
    ]  # fmt: skip
    assert words[-6:] == [
        "--pinned-memory-pool-byte-size=0",
        "--enable-peer-access=false",
        *(f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(4)),
    ]


# Of two processes the first one is in the middle of a request, for longer than mpirun would wait.
_TRITON = """\
#!/bin/bash
trap 'sleep 3; echo "rank $OMPI_COMM_WORLD_RANK has finished" >> "$SAID"; exit 0' TERM
echo "rank $OMPI_COMM_WORLD_RANK starts" >> "$SAID"
while :; do sleep 0.1; done
"""


@pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="no mpirun (apt-get install openmpi-bin)"
)
def test_pod_that_is_to_end_finishes_what_is_in_flight(tmp_path: Path) -> None:
    """The pod's script under a real bash and a real mpirun, with a Triton that takes its time."""
    triton, said = tmp_path / "tritonserver", tmp_path / "said"
    triton.write_text(_TRITON)
    triton.chmod(0o755)
    model = dataclasses.replace(PLAIN, num_gpus=2, num_ranks=2)
    script = container(plan(model)["Deployment"])["command"][2]
    script = script.replace("/opt/tritonserver/bin/tritonserver", str(triton))
    environ = {**os.environ, "SAID": str(said), "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    pod = subprocess.Popen(("bash", "-c", script), env=environ, start_new_session=True)
    try:
        wait_until(lambda: said.exists() and len(said.read_text().splitlines()) == 2, timeout_s=60)
        pod.send_signal(signal.SIGTERM)
        assert pod.wait(60) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pod.pid, signal.SIGKILL)
    assert said.read_text().splitlines()[2:] == ["rank 0 has finished"]


def test_other_pods_wait_for_their_ranks(tmp_path: Path) -> None:
    _, worker = templates(plan(SPREAD, ON_TWO)["LeaderWorkerSet"])
    script = worker["template"]["spec"]["containers"][0]["command"][2]
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "comm").write_text("orted\n")
    # Whatever else runs on this machine is none of the pod's.
    script = script.replace("/proc", str(tmp_path)) + "echo ended\n"
    pod = subprocess.Popen(("bash", "-c", script), stdout=subprocess.PIPE, start_new_session=True)
    try:
        wait_until(lambda: len(psutil.Process(pod.pid).children()) == 1)
        pod.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            pod.wait(1.5)
        (tmp_path / "1" / "comm").write_text("bash\n")
        assert pod.wait(30) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pod.pid, signal.SIGKILL)
    assert pod.stdout is not None
    with pod.stdout:
        assert pod.stdout.read() == b""


def test_agent_takes_what_mpirun_gives_to_ssh(tmp_path: Path) -> None:
    agent = tmp_path / "kubessh"
    agent.write_text(plan(SPREAD, ON_TWO)["ConfigMap"]["data"]["kubessh"])
    kubectl = tmp_path / "kubectl"
    kubectl.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    kubectl.chmod(0o755)
    command = ("sh", str(agent), "-x", "pod-1", "orted", "-mca", "ess", '"env"')
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    answer = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    expected = ["exec", "pod-1", "--", "/bin/sh", "-c", 'orted -mca ess "env"']
    assert answer.stdout.splitlines() == expected


def test_management_is_closed_with_a_token_that_nobody_has() -> None:
    script = container(plan()["Deployment"])["command"][2]
    restricted = "shared-memory,model-repository,trace,logging"
    assert f'--http-restricted-api={restricted}:tllm-token="$TLLM_TOKEN"' in script
    assert shlex.split(script.splitlines()[0])[0].startswith("TLLM_TOKEN=$(head")


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        (SPREAD, KubernetesOptions(nodes=2), "needs an image of your own to run on 2 nodes"),
        (PLAIN, ON_TWO, "cannot be spread over 2 nodes"),
        (SPREAD, KubernetesOptions(nodes=3, image="i"), "16 ranks cannot be shared out among 3"),
        (
            dataclasses.replace(PLAIN, image=None, needs="what nobody has"),
            KubernetesOptions(),
            "No public container image serves Llama_3.1",
        ),
        (
            dataclasses.replace(PLAIN, folders=(HOME / "models" / "l", Path("/data/engine"))),
            KubernetesOptions(claim="models"),
            "The claim models cannot hold all of Llama_3.1",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    model: Deployable, options: KubernetesOptions, says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        plan(model, options)
