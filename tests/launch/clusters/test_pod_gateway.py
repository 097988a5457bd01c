"""The gateway in the pods, whose scripts are run by a real bash."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launch.clusters.kubernetes_samples import (
    GATEWAY,
    HOME,
    ON_TWO,
    PLAIN,
    SPREAD,
    Manifest,
    plan,
    script_of,
)
from tests.waiting import wait_until
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.launch.clusters.kubernetes import KubernetesOptions
from trtllm_serve_cli.launch.clusters.pod_gateway import PodGateway


def pod_of(manifest: Manifest) -> dict[str, Any]:
    return dict(manifest["spec"]["template"]["spec"])


def containers(gateway: PodGateway | None = GATEWAY) -> dict[str, dict[str, Any]]:
    pod = pod_of(plan(gateway=gateway)["Deployment"])
    return {each["name"]: each for each in pod["containers"]}


def changed(**fields: Any) -> PodGateway:
    """Return the sample gateway with changed fields of its configuration."""
    return dataclasses.replace(GATEWAY, config=dataclasses.replace(GATEWAY.config, **fields))


def test_gateway_serves_the_model_of_its_pod() -> None:
    made = plan(gateway=GATEWAY)
    assert made["ConfigMap"]["metadata"]["name"] == "tllm-llama-3-1-gateway"
    config = GatewayConfig.from_json(made["ConfigMap"]["data"]["gateway.json"])
    assert config == GATEWAY.config
    (model,) = config.models
    local = {name: f"127.0.0.1:{8000 + number}" for number, name in enumerate(("http", "grpc"))}
    assert model.endpoint == Endpoint(**local, metrics="127.0.0.1:8002")
    container = containers()["gateway"]
    assert container["image"] == "registry/tllm:1"
    assert container["command"][1:3] == ["-m", "trtllm_serve_cli.gateway"]
    # The same threads per process as the gateway of `tllm start`.
    assert container["env"] == [{"name": "OPENBLAS_NUM_THREADS", "value": "1"}]
    folder, file = container["command"][3].rsplit("/", 1)
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    volumes = {each["name"]: each for each in pod_of(made["Deployment"])["volumes"]}
    config_map = volumes[mounts[folder]]["configMap"]["name"]
    assert (config_map, file) == ("tllm-llama-3-1-gateway", "gateway.json")
    assert config.keys_file is not None
    keys = volumes[mounts[config.keys_file.rpartition("/")[0]]]
    assert keys["secret"] == {"secretName": "llm-keys"}
    # The tokenizer is among the model's files.
    files = {str(HOME / "models" / "Llama_3.1"), str(HOME / "engines" / "llama")}
    assert files < {each["mountPath"] for each in container["volumeMounts"] if "readOnly" in each}


def test_service_and_probes_use_the_port_of_the_gateway() -> None:
    made = plan(gateway=changed(port=9100))
    assert made["Service"]["spec"]["ports"][-1] == {
        "name": "openai", "port": 9100, "targetPort": "openai",
    }  # fmt: skip
    container = pod_of(made["Deployment"])["containers"][-1]
    assert container["ports"] == [{"name": "openai", "containerPort": 9100}]
    probes = ("startupProbe", "readinessProbe", "livenessProbe")
    assert [container[each]["httpGet"]["path"] for each in probes] == ["/", "/health", "/"]


def test_changed_configuration_replaces_the_pods() -> None:
    templates = [
        plan(gateway=each)["Deployment"]["spec"]["template"]["metadata"]["annotations"]
        for each in (GATEWAY, GATEWAY, changed(port=9100))
    ]
    assert templates[0] == templates[1] != templates[2]


def test_only_the_leader_of_several_pods_runs_the_gateway() -> None:
    parts = plan(SPREAD, ON_TWO, gateway=GATEWAY)["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    names = [
        [each["name"] for each in parts[template]["spec"]["containers"]]
        for template in ("leaderTemplate", "workerTemplate")
    ]
    assert names == [["triton", "gateway"], ["worker"]]
    assert "shareProcessNamespace" not in parts["workerTemplate"]["spec"]


def test_pods_of_an_engine_have_the_same_time_to_stop() -> None:
    parts = plan(SPREAD, ON_TWO, gateway=GATEWAY)["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    grace = [
        parts[template]["spec"]["terminationGracePeriodSeconds"]
        for template in ("leaderTemplate", "workerTemplate")
    ]
    assert grace == [75, 75]


def test_triton_writes_its_process_id_for_the_gateway(tmp_path: Path) -> None:
    triton = tmp_path / "tritonserver"
    triton.write_text('#!/bin/bash\necho "$$"\n')
    triton.chmod(0o755)
    script = script_of(containers()["triton"], tmp_path)
    # Kubernetes replaces two dollar signs in a command by one.
    assert "$$" not in script
    script = script.replace("/opt/tritonserver/bin/tritonserver", str(triton))
    script = script.replace("/run/tllm", str(tmp_path))
    ran = subprocess.run(("bash", "-c", script), capture_output=True, text=True, check=True)
    state = json.loads((tmp_path / "state.json").read_text())
    assert state == {"server_pid": int(ran.stdout)}


def test_triton_stops_after_the_gateway(tmp_path: Path) -> None:
    hook = containers()["triton"]["lifecycle"]["preStop"]["exec"]["command"][2]
    assert hook.startswith("sleep 5; ")
    # Do not wait for gateways of other tests.
    name = f"{tmp_path.name}.gateway"
    hook = hook.removeprefix("sleep 5; ").replace(
        "trtllm_serve_cli[.]gateway", f"{tmp_path.name}[.]gateway"
    )
    running = subprocess.Popen((sys.executable, "-c", "input()", name), stdin=subprocess.PIPE)
    waiting = subprocess.Popen(("bash", "-c", hook))
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(1.5)
        running.communicate(b"\n")
        wait_until(lambda: waiting.poll() == 0)
    finally:
        for each in (running, waiting):
            each.kill()
            each.wait()
    grace = [
        pod_of(plan(gateway=each)["Deployment"])["terminationGracePeriodSeconds"]
        for each in (None, GATEWAY)
    ]
    assert grace == [45, 75]


@pytest.mark.parametrize(
    ("gateway", "message"),
    [
        (changed(port=8001), "cannot use port 8001"),
        (dataclasses.replace(changed(key_policy="on"), keys_secret=None), "reject all requests"),
        (changed(runtime_lora_dir="/srv/tenants"), "--runtime-lora-dir requires a single replica"),
    ],
)
def test_gateway_that_cannot_work_is_rejected(gateway: PodGateway, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        plan(PLAIN, KubernetesOptions(), gateway=gateway)


def test_clients_can_load_adapters_into_a_single_replica() -> None:
    gateway = changed(runtime_lora_dir="/srv/tenants")
    alone = KubernetesOptions(max_replicas=1)
    made = plan(options=alone, gateway=gateway)
    assert '"/srv/tenants"' in made["ConfigMap"]["data"]["gateway.json"]
    with pytest.raises(BadInput, match="requires a single replica") as raised:
        plan(options=KubernetesOptions(replicas=2, max_replicas=2), gateway=gateway)
    assert "up to 2 replicas" in str(raised.value.why)
