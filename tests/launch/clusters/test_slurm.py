"""Slurm jobs and their scripts, compared with upstream's and run by a real bash."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.heartbeats import make_runtime_folder
from tests.launch.clusters.slurm_samples import MODEL, PLAIN, PYTORCH
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel
from trtllm_serve_cli.launch.clusters.slurm import SlurmOptions, plan_slurm, render_script
from trtllm_serve_cli.launch.containers.deployment import Deployable
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.launch.triton.triton_install import IN_CONTAINER, TritonInstallation

ONE_NODE = SlurmOptions()
OPEN = LaunchOptions(host="0.0.0.0")


def script(
    model: Deployable = MODEL,
    options: SlurmOptions = ONE_NODE,
    triton: TritonInstallation = IN_CONTAINER,
    directory: Path | None = None,
    gateway: GatewayConfig | None = None,
) -> str:
    plan = plan_slurm(
        model, triton, options, OPEN, directory=directory, environ={}, gateway=gateway
    )
    return render_script(plan)


def directives(text: str) -> dict[str, str]:
    found = [line.removeprefix("#SBATCH ") for line in text.splitlines() if "#SBATCH" in line]
    return dict(shlex.split(each)[0].removeprefix("--").partition("=")[::2] for each in found)


def srun_options(text: str) -> dict[str, str]:
    command = text[text.index("\nsrun ") :].partition("\nstatus=")[0]
    words = shlex.split(command.replace("\\\n", " "))
    return dict(w.removeprefix("--").partition("=")[::2] for w in words if w.startswith("--"))


def task(text: str) -> str:
    return text.partition("<< 'TASK'\n")[2].partition("TASK\n")[0]


def test_numpy_of_the_models_has_one_thread() -> None:
    assert "\nexport OPENBLAS_NUM_THREADS=1\n" in script()


def test_job_has_the_options_of_the_backends_readme() -> None:
    """Options of `tensorrt_llm_triton.sub` and `.sh` in the backend's README.md at v0.9.0."""
    text = script(
        options=SlurmOptions(
            account="ACCOUNT",
            partition="PARTITION",
            nodes=1,
            ntasks_per_node=8,
            time="00:30:00",
            container_image="triton_trt_llm",
            container_mounts=("/path/to/tensorrtllm_backend:/tensorrtllm_backend",),
            container_workdir="/tensorrtllm_backend",
            prologue=("sudo nvidia-smi -lgc 1410,1410",),
        )
    )
    assert text.startswith("#!/bin/bash\n#SBATCH ")
    assert directives(text) == {
        "output": "tllm-llama-%j-job.log",
        "error": "tllm-llama-%j-job.log",
        "job-name": "tllm-llama",
        "account": "ACCOUNT",
        "partition": "PARTITION",
        "nodes": "1",
        "ntasks-per-node": "8",
        "time": "00:30:00",
        # Not in upstream's script: clusters that share nodes allocate GPUs only on request.
        "gpus-per-node": "8",
        "open-mode": "append",
    }
    assert srun_options(text) == {
        "mpi": "pmix",
        # Not in upstream's script: the job ends if one of its ranks fails.
        "kill-on-bad-exit": "1",
        "container-image": "triton_trt_llm",
        "container-mounts": "/tensorrtllm_backend/triton_model_repo"
        ":/tensorrtllm_backend/triton_model_repo:ro,/engines/llama:/engines/llama:ro,"
        "/path/to/tensorrtllm_backend:/tensorrtllm_backend",
        "container-workdir": "/tensorrtllm_backend",
        "output": "tllm-llama-%j-server_%t.log",
    }
    assert "\nsudo nvidia-smi -lgc 1410,1410\n" in text
    for word in (
        "exec /opt/tritonserver/bin/tritonserver ",
        "--model-repository=/tensorrtllm_backend/triton_model_repo ",
        "--disable-auto-complete-config ",
        '--backend-config=python,shm-region-prefix-name="tllm-$SLURM_JOB_ID-$SLURM_PROCID-" ',
    ):
        assert word in task(text)


def test_llm_api_on_two_nodes_runs_upstreams_launcher() -> None:
    """Options of examples/llm-api/llm_mgmn_trtllm_serve.sh in NVIDIA/TensorRT-LLM."""
    options = SlurmOptions(
        account="A", partition="P", time="01:00:00", nodes=2, container_image="trtllm"
    )
    text = script(PYTORCH, options)
    assert directives(text) | {"output": "", "error": ""} == {
        "account": "A",
        "partition": "P",
        "time": "01:00:00",
        "nodes": "2",
        "ntasks-per-node": "8",
        "gpus-per-node": "8",
        "job-name": "tllm-llama",
        "output": "",
        "error": "",
        "open-mode": "append",
    }
    assert srun_options(text)["mpi"] == "pmix"
    # The launcher starts the server only on the first rank, so all tasks run the same command.
    assert task(text).startswith(
        "exec trtllm-llmapi-launch /opt/tritonserver/bin/tritonserver \\\n"
    )
    assert "role" not in task(text)


def test_llm_api_on_two_nodes_has_the_options_of_the_backends_guide() -> None:
    """Options of `srun -N 2 --ntasks-per-node=8 --mpi=pmix --container-image=…`, docs/llmapi.md."""
    text = script(PYTORCH, SlurmOptions(nodes=2, ntasks_per_node=8, container_image="IMAGE"))
    expected = {"nodes": "2", "ntasks-per-node": "8", "mpi": "pmix", "container-image": "IMAGE"}
    assert expected.items() <= (directives(text) | srun_options(text)).items()


def test_mig_slice_is_requested_by_its_gres_name() -> None:
    one = dataclasses.replace(MODEL, num_gpus=1, num_ranks=1)
    options = SlurmOptions(gpus_per_node=0, sbatch=("--gres=gpu:1g.10gb:1",))
    requested = directives(script(one, options))
    assert (requested["gres"], "gpus-per-node" in requested) == ("gpu:1g.10gb:1", False)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (PLAIN, SlurmOptions(nodes=2), "llama cannot be distributed across 2 nodes."),
        (MODEL, SlurmOptions(nodes=3), "8 ranks cannot be divided evenly among 3 nodes."),
        (MODEL, SlurmOptions(ntasks_per_node=4),
         "--ntasks-per-node must be 8 for llama, not 4."),
        (PLAIN, SlurmOptions(container_workdir="/w"), "--container-workdir require a container"),
        (dataclasses.replace(MODEL, num_ranks=1, spawns=True), ONE_NODE,
         "llama cannot run under Slurm."),
        (PLAIN, SlurmOptions(time="abc"), "'abc' is not a valid Slurm time limit."),
        (PLAIN, SlurmOptions(time="08:00:00:00"), "is not a valid Slurm time limit."),
    ],
)  # fmt: skip
def test_plan_rejects_impossible_options(
    model: Deployable, options: SlurmOptions, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        script(model, options)


def test_error_for_a_time_limit_lists_the_formats() -> None:
    with pytest.raises(BadInput) as refused:
        script(PLAIN, SlurmOptions(time="abc"))
    for form in ("minutes", "MM:SS", "HH:MM:SS", "D-HH", "D-HH:MM", "D-HH:MM:SS", "UNLIMITED"):
        assert f" {form}," in f"{refused.value.why},".replace(" and", ",")


@pytest.mark.parametrize(
    "time", ["90", "90:30", "08:00:00", "2-12", "2-12:30", "2-12:30:00", "UNLIMITED"]
)
def test_time_limit_has_a_format_of_sbatch(time: str) -> None:
    assert directives(script(PLAIN, SlurmOptions(time=time)))["time"] == time


def run_job(
    text: str, tmp_path: Path, rank: int = 0, before: str = ":"
) -> tuple[dict[str, object], list[str]]:
    """Run the job with an `srun` of one task; return its address file and Triton's arguments.

    `before` contains commands that Triton runs before it ends.
    """
    programs = tmp_path / "bin"
    programs.mkdir(exist_ok=True)
    for name, lines in {
        "srun": 'for last; do :; done\nSLURM_PROCID=$RANK exec bash -c "$last"',
        "tritonserver": f'printf "%s\\n" "$@" > {shlex.quote(str(tmp_path / "arguments"))}\n'
        f"{before}\nexit 7",
    }.items():
        (programs / name).write_text(f"#!/bin/bash\n{lines}\n")
        (programs / name).chmod(0o755)
    environ = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "12", "RANK": str(rank)}
    ended = subprocess.run(("bash",), input=text, text=True, env=environ, cwd=tmp_path, check=False)
    assert ended.returncode == 7
    (address_file,) = (*tmp_path.glob("*/address.json"), *tmp_path.glob("*-address.json"))
    address = json.loads(address_file.read_text())
    return address, (tmp_path / "arguments").read_text().splitlines()


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "my job"
    folder.mkdir()
    return folder


def triton_in(tmp_path: Path) -> TritonInstallation:
    return TritonInstallation(tmp_path / "bin" / "tritonserver", "PATH")


def test_job_writes_its_address_and_exit_code(tmp_path: Path, job: Path) -> None:
    text = script(PLAIN, triton=triton_in(tmp_path), directory=job)
    address, arguments = run_job(text, tmp_path)
    token = address.pop("token")
    assert address == {"host": os.uname().nodename, "http": 10036, "grpc": 10037, "metrics": 10038}
    assert {
        "--http-port=10036",
        "--grpc-port=10037",
        "--metrics-port=10038",
        "--http-address=0.0.0.0",
        "--backend-config=python,shm-region-prefix-name=tllm-12-0-",
        f"--grpc-restricted-protocol=shared-memory,model-repository,trace,logging:tllm-token={token}",
    } <= set(arguments)
    assert (job / "exit-code").read_text() == "7\n"
    assert (job / "address.json").stat().st_mode & 0o077 == 0


def test_equal_ports_are_rejected() -> None:
    options = SlurmOptions(http_port=8000, openai_port=8000)
    with pytest.raises(BadInput, match=r"^The ports 8000, 8000 are not distinct\."):
        script(PLAIN, options, gateway=GATEWAY)
    assert "TLLM_HTTP_PORT=8000" in script(PLAIN, options)


def test_job_keeps_the_ports_that_are_set(tmp_path: Path, job: Path) -> None:
    options = SlurmOptions(http_port=8000, grpc_port=8001, metrics_port=8002)
    text = script(PLAIN, options, triton_in(tmp_path), job)
    address, arguments = run_job(text, tmp_path)
    assert (address["http"], address["grpc"], address["metrics"]) == (8000, 8001, 8002)
    assert "--http-port=8000" in arguments


def test_other_ranks_open_no_port(tmp_path: Path, job: Path) -> None:
    text = script(MODEL, triton=triton_in(tmp_path), directory=job)
    _, arguments = run_job(text, tmp_path, rank=3)
    assert [word for word in arguments if "port" in word or "address" in word] == []
    assert {"--allow-http=false", "--load-model=tensorrt_llm"} <= set(arguments)
    assert "--model-control-mode=none" not in arguments


def test_percent_signs_in_paths_are_escaped(tmp_path: Path) -> None:
    text = script(PLAIN, directory=Path("/homes/100%j it's"))
    assert directives(text)["output"] == "/homes/100%%j it's/job.log"


# A template with everything that a here-document would replace.
TEMPLATE = "{{ '$HOME `id` $(id) \\\\ \\n' }}\nCONFIG\n"
GATEWAY = GatewayConfig(
    (ServedModel("llama", "llama", Endpoint(), "/engines/it's"),),
    host="0.0.0.0",
    chat_template=TEMPLATE,
)


def run_with_gateway(
    tmp_path: Path, directory: Path | None, options: SlurmOptions = ONE_NODE, python: str = "cat"
) -> dict[str, object]:
    """Run a job whose Python copies the gateway's configuration; return the address file."""
    fake = tmp_path / "python"
    copy = shlex.quote(str(tmp_path / "copy.json"))
    # The job also runs Python to check that the gateway is installed.
    fake.write_text(f'#!/bin/sh\n[ "$1" = -c ] || {python} "$3" > {copy}\n')
    fake.chmod(0o755)
    text = script(PLAIN, options, triton_in(tmp_path), directory, GATEWAY)
    text = text.replace(shlex.quote(sys.executable), shlex.quote(str(fake)))
    # Triton waits until the gateway has started.
    ready = f"while ! [ -s {copy} ]; do sleep 0.05; done"
    text = text.replace("\nexec ", f"\n{ready}\nexec ") if python == "cat" else text
    return run_job(text, tmp_path)[0]


@pytest.mark.parametrize("is_submitted", [True, False])
def test_gateway_has_the_ports_of_the_job(tmp_path: Path, job: Path, is_submitted: bool) -> None:
    address = run_with_gateway(tmp_path, job if is_submitted else None)
    assert address["openai"] == 31012
    config = GatewayConfig.from_json((tmp_path / "copy.json").read_text())
    folder = str(job / "state") if is_submitted else "tllm-llama-12-state"
    endpoint = Endpoint(grpc="127.0.0.1:10037", http="127.0.0.1:10036")
    assert config == dataclasses.replace(
        GATEWAY,
        models=(dataclasses.replace(GATEWAY.models[0], endpoint=endpoint),),
        port=31012,
        server_directory=folder,
    )
    state = json.loads((tmp_path / folder / "state.json").read_text())
    assert isinstance(state["server_pid"], int)


def test_gateway_keeps_the_port_that_is_set(tmp_path: Path, job: Path) -> None:
    address = run_with_gateway(tmp_path, job, SlurmOptions(openai_port=9000))
    assert address["openai"] == 9000


def test_job_runs_without_the_gateway_on_a_node_without_tllm(tmp_path: Path, job: Path) -> None:
    text = script(PLAIN, triton=triton_in(tmp_path), directory=job, gateway=GATEWAY)
    text = text.replace(shlex.quote(sys.executable), "/missing/python")
    address, _ = run_job(text, tmp_path)
    assert address["openai"] is None
    assert not (job / "state" / "gateway.json").exists()


def test_container_can_write_the_state_of_the_server() -> None:
    options = SlurmOptions(container_image="IMAGE")
    mounts = srun_options(script(PLAIN, options, directory=Path("/jobs/1")))["container-mounts"]
    assert "/jobs/1/state:/jobs/1/state" in mounts.split(",")


@pytest.mark.parametrize("name", ["a:b", "a,b"])
def test_container_cannot_mount_a_path_with_a_separator(name: str) -> None:
    model = dataclasses.replace(PLAIN, folders=(Path("/srv") / name,))
    with pytest.raises(BadInput, match=f"/srv/{name} cannot be mounted into a container"):
        script(model, SlurmOptions(container_image="IMAGE"))
    script(model)


def test_watched_job_hides_its_token_and_records_its_state(tmp_path: Path, job: Path) -> None:
    watched = dataclasses.replace(PLAIN, runtime=make_runtime_folder(tmp_path))
    # Triton waits until other users can no longer read its token.
    hidden = 'while grep -q "$TLLM_TOKEN" /proc/$$/cmdline; do sleep 0.05; done'
    region = "/dev/shm/tllm-$SLURM_JOB_ID-$SLURM_PROCID-region"
    text = script(watched, triton=triton_in(tmp_path), directory=job)
    _, arguments = run_job(text, tmp_path, before=f": > {region}\n{hidden}")
    assert "--disable-auto-complete-config" in arguments
    assert (job / "exit-code").read_text() == "7\n"
    state = json.loads((job / "state" / "state.json").read_text())
    assert (state["phase"], state["why"], state["server_pid"] > 0) == ("starting", [], True)
    assert list(Path("/dev/shm").glob("tllm-12-*")) == []


def test_job_runs_without_the_watch_on_a_node_without_a_recent_python(
    tmp_path: Path, job: Path
) -> None:
    watched = dataclasses.replace(PLAIN, runtime=make_runtime_folder(tmp_path))
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    _, arguments = run_job(script(watched, triton=triton_in(tmp_path), directory=job), tmp_path)
    assert "--disable-auto-complete-config" in arguments
    assert list((job / "state").iterdir()) == []


def test_heartbeats_are_written_to_a_private_folder(tmp_path: Path, job: Path) -> None:
    modes = tmp_path / "modes"
    text = script(PLAIN, triton=triton_in(tmp_path), directory=job)
    run_job(text, tmp_path, before=f'stat -c "%a %n" "$TLLM_PULSES" > {modes}')
    mode, _, name = modes.read_text().partition(" ")
    assert mode == "700"
    assert re.fullmatch(r"/dev/shm/tllm-12-pulses-\w{6}\n", name)


def test_time_limits_and_the_request_for_a_token_are_passed_to_the_job() -> None:
    model = dataclasses.replace(PLAIN, runtime=Path("/models/it's"), needs_tokens=True)
    plan = plan_slurm(model, IN_CONTAINER, ONE_NODE, LaunchOptions(hang_timeout_s=60.0), environ={})
    words = shlex.split(" ".join(plan.watch))
    assert words[:4] == ["python3", "-I", "-S", "-c"]
    assert (words[5], words[-1]) == ("/models/it's", "--")
    assert words[-6:-1] == [
        "--hang-timeout=60", "--load-timeout=1800",
        "--token", "llama", '{"text_input": "Hello", "max_tokens": 1}',
    ]  # fmt: skip


def test_model_of_an_earlier_version_is_not_watched() -> None:
    assert "exec /opt/tritonserver/bin/tritonserver" in task(script(PLAIN))
