"""The script of a pod, run by a real bash and a real mpirun."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.launch.clusters.kubernetes_samples import (
    LLM_API,
    ON_TWO,
    PLAIN,
    SPREAD,
    container,
    plan,
    script_of,
    templates,
)
from tests.waiting import wait_until
from trtllm_serve_cli.launch.clusters.kubernetes import KubernetesOptions
from trtllm_serve_cli.launch.containers.deployment import Deployable


def arguments_of(model: Deployable, options: KubernetesOptions, tmp_path: Path) -> list[str]:
    """Run the pod's script with fakes of `kubectl` and `mpirun`; return the arguments of mpirun."""
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
        ("bash", "-c", script_of(server, tmp_path)),
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return answer.stdout.splitlines()


def test_leader_starts_a_rank_per_gpu_and_serves_itself(tmp_path: Path) -> None:
    words = arguments_of(SPREAD, ON_TWO, tmp_path)
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


def test_llm_api_launcher_runs_on_every_rank(tmp_path: Path) -> None:
    words = arguments_of(LLM_API, ON_TWO, tmp_path)
    assert words[9:13] == [
        "-n", "16", "trtllm-llmapi-launch", "/opt/tritonserver/bin/tritonserver",
    ]  # fmt: skip
    assert ":" not in words


def test_several_gpus_of_one_node_need_no_agent(tmp_path: Path) -> None:
    model = dataclasses.replace(PLAIN, num_gpus=4, num_ranks=4)
    words = arguments_of(model, KubernetesOptions(), tmp_path)
    assert words[:7] == [
        "mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", "1",
        "/opt/tritonserver/bin/tritonserver",
    ]  # fmt: skip


def test_instances_on_separate_gpus_are_spawned(tmp_path: Path) -> None:
    """gpu_device_ids 0,1;2,3 selects orchestrator mode, as in `tllm start --mode mpi`."""
    model = dataclasses.replace(PLAIN, num_gpus=4, num_ranks=1, spawns=True)
    words = arguments_of(model, KubernetesOptions(), tmp_path)
    assert words[4:11] == [
        "-n", "1", "-x", "TRTLLM_ORCHESTRATOR=1", "-x", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES=1",
        "/opt/tritonserver/bin/tritonserver",
    ]  # fmt: skip
    assert words[-6:] == [
        "--pinned-memory-pool-byte-size=0",
        "--enable-peer-access=false",
        *(f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(4)),
    ]


# The first of two processes finishes a request, for longer than mpirun would wait.
_TRITON = """\
#!/bin/bash
trap 'sleep 3; echo "rank $OMPI_COMM_WORLD_RANK has finished" >> "$LOG"; exit 0' TERM
echo "rank $OMPI_COMM_WORLD_RANK starts" >> "$LOG"
while :; do sleep 0.1; done
"""


@pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="no mpirun (apt-get install openmpi-bin)"
)
def test_pod_finishes_requests_in_flight_on_sigterm(tmp_path: Path) -> None:
    """Run the pod's script with a real bash and mpirun, and a Triton that stops slowly."""
    triton, log = tmp_path / "tritonserver", tmp_path / "log"
    triton.write_text(_TRITON)
    triton.chmod(0o755)
    model = dataclasses.replace(PLAIN, num_gpus=2, num_ranks=2)
    script = script_of(container(plan(model)["Deployment"]), tmp_path)
    script = script.replace("/opt/tritonserver/bin/tritonserver", str(triton))
    environ = {**os.environ, "LOG": str(log), "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    pod = subprocess.Popen(("bash", "-c", script), env=environ, start_new_session=True)
    try:
        wait_until(lambda: log.exists() and len(log.read_text().splitlines()) == 2)
        pod.send_signal(signal.SIGTERM)
        assert pod.wait(60) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pod.pid, signal.SIGKILL)
    assert log.read_text().splitlines()[2:] == ["rank 0 has finished"]


def test_worker_pods_wait_for_their_ranks(tmp_path: Path) -> None:
    _, worker = templates(plan(SPREAD, ON_TWO)["LeaderWorkerSet"])
    script = worker["template"]["spec"]["containers"][0]["command"][2]
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "comm").write_text("orted\n")
    # Do not look at other processes of this machine.
    script = script.replace("/proc", str(tmp_path)) + "echo ended\n"
    pod = subprocess.Popen(("bash", "-c", script), stdout=subprocess.PIPE, start_new_session=True)
    try:
        wait_until(lambda: len(psutil.Process(pod.pid).children()) == 1)
        pod.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            pod.wait(1.5)
        (tmp_path / "1" / "comm").write_text("bash\n")
        assert pod.wait(60) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pod.pid, signal.SIGKILL)
    assert pod.stdout is not None
    with pod.stdout:
        assert pod.stdout.read() == b""


def test_agent_accepts_the_arguments_of_ssh(tmp_path: Path) -> None:
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


def test_management_apis_are_closed_with_a_random_token() -> None:
    script = container(plan()["Deployment"])["command"][2]
    restricted = "shared-memory,model-repository,trace,logging"
    assert f'--http-restricted-api={restricted}:tllm-token="$TLLM_TOKEN"' in script
    assert shlex.split(script.splitlines()[0])[0].startswith("TLLM_TOKEN=$(head")
