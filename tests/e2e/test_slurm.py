"""Models served by Slurm jobs, which `tllm` submits, monitors and cancels."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from tests.e2e import slurm
from tests.e2e.alive import command_of
from tests.e2e.conftest import Tllm
from tests.waiting import wait_until
from trtllm_serve_cli.launch.clusters.slurm import SlurmOptions, plan_slurm, render_script
from trtllm_serve_cli.launch.clusters.slurm_job import make_job_folder, query_slurm, submit_job
from trtllm_serve_cli.launch.containers.deployment import Deployable
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.launch.triton.triton_install import TritonInstallation

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(slurm.skip_reason()), reason=slurm.skip_reason() or "-"),
]

RANKED = Deployable(
    name="ranked",
    text_model="ranked",
    kind="tensorrt",
    models=("tensorrt_llm", "ranked"),
    repository=Path("/models/ranked"),
    folders=(Path("/models/ranked"),),
    num_gpus=2,
    num_ranks=2,
    image=None,
)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Path]:
    # PMIx creates sockets in this folder, and socket paths must be short.
    with (
        tempfile.TemporaryDirectory(prefix="slurm") as root,
        slurm.run_cluster(Path(root)) as conf,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SLURM_CONF", str(conf))
        yield conf


def jobs() -> list[str]:
    """Return the states of all queued and running jobs."""
    command = ("squeue", "--noheader", "--format=%T")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def processes_of(tllm: Tllm) -> list[list[str]]:
    """Return the commands of all processes that refer to the home."""
    commands = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
    return [words for words in commands if any(str(tllm.home) in word for word in words)]


def server(tllm: Tllm) -> dict[str, Any]:
    (only,) = json.loads(tllm.done("status", "--json"))["servers"]
    return dict(only)


def wait_for(tllm: Tllm, state: str) -> None:
    """Wait for a state with few queries, because each one takes CPU time from the server."""

    def is_reached() -> bool:
        time.sleep(2)
        return bool(server(tllm)["state"] == state)

    wait_until(is_reached, timeout_s=240)


def check_openai_api(tllm: Tllm, url: str) -> None:
    """Send a chat completion to the job's gateway, which sends it to the engine worker."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "What is ML?"}],
            max_tokens=5,
            # The gateway can send this parameter only to an engine worker, not to Triton.
            extra_body={"min_p": 0.1},
        )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert "POST /v1/chat/completions 200" in tllm.done("logs", "--gateway")


def test_job_from_submission_to_stop(fresh_home: Callable[[], Tllm]) -> None:
    tllm = fresh_home()
    submitted = json.loads(tllm.done("deploy", "slurm", "-m", "demo", "--submit", "--json"))
    assert (submitted["state"], Path(submitted["directory"]).name) == ("PENDING", "slurm-demo-1")
    wait_for(tllm, "ready")
    status = server(tllm)
    assert status["job"] == {"id": submitted["job"], "state": "RUNNING", "reason": ""}
    assert status["models"] == ["demo"]
    assert tllm.done("infer", "The capital of France is", "--max-tokens", "5", "--raw")
    check_openai_api(tllm, status["openai"])
    assert "successfully loaded 'tensorrt_llm'" in tllm.done("logs", "-n", "500")
    assert json.loads(tllm.done("metrics", "--json"))
    stopped = tllm("stop")
    assert stopped.stderr == f"Stopping demo on Slurm job {submitted['job']} …\nStopped.\n"
    assert jobs() == []
    assert list(Path("/dev/shm").glob(f"tllm-{submitted['job']}-*")) == []
    assert processes_of(tllm) == []
    assert json.loads(tllm.done("status", "--json")) == {"servers": []}


@pytest.fixture
def light_home(source: str, tmp_path: Path) -> Iterator[Callable[[], Tllm]]:
    """Provide a function that makes a home with a simulated engine and two models."""
    tllm = Tllm(tmp_path / "home")
    timing = tmp_path / "timing.json"
    timing.write_text(json.dumps({"timing": {"step_s": 0.005}, "limits": {"max_batch_size": 64}}))

    def make() -> Tllm:
        tllm.done("import", "-m", "demo", "-s", source, "--engine", "sim", "--timing", str(timing))
        for name in ("ensemble", "preprocessing", "postprocessing", "tensorrt_llm_bls"):
            shutil.rmtree(tllm.home / "models" / "demo" / name)
        return tllm

    yield make
    tllm("stop", "--all")


def find_process(tllm: Tllm, word: str) -> psutil.Process:
    """Return the process of Triton or of a model whose command contains `word`."""
    (triton,) = (
        each
        for each in psutil.process_iter(["name"])
        if each.info["name"] == "tritonserver" and str(tllm.home) in command_of(each)
    )
    every = (triton, *triton.children(recursive=True))
    return next(each for each in every if word in command_of(each))


def assert_secrets_are_hidden(tllm: Tllm, job: str) -> None:
    """Assert that other users can read neither the restricted APIs' token nor the prompts."""
    (address,) = (tllm.home / "servers").glob("*/address.json")
    token = json.loads(address.read_text())["token"]
    # A process may end while the list is read. Its command line is then None.
    commands = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
    assert all(token not in " ".join(words) for words in commands)
    regions = list(Path("/dev/shm").glob(f"tllm-{job}-*"))
    assert len(regions) > 1 and all(region.stat().st_mode & 0o077 == 0 for region in regions)


def test_process_that_hangs_is_restarted_or_ends_the_job(light_home: Callable[[], Tllm]) -> None:
    tllm = light_home()
    options = ("--submit", "--json", "--no-openai", "--hang-timeout", "8")
    job = json.loads(tllm.done("deploy", "slurm", "-m", "demo", *options))["job"]
    wait_for(tllm, "ready")
    wait_until(lambda: find_process(tllm, "tllm_runtime.worker"))
    assert_secrets_are_hidden(tllm, job)
    worker = find_process(tllm, "tllm_runtime.worker")
    worker.suspend()
    wait_for(tllm, "unresponsive")
    what = f"the engine worker of tensorrt_llm (process {worker.pid}) has"
    assert server(tllm)["why"][0].startswith(what)
    wait_for(tllm, "ready")
    assert tllm.done("infer", "Hello", "--max-tokens", "5", "--raw")
    model = find_process(tllm, "/tensorrt_llm/1/model.py")
    model.suspend()
    wait_for(tllm, "failed")
    assert (server(tllm)["why"], server(tllm)["hangs"]) == (
        [
            f"Slurm job {job} is FAILED (NonZeroExitCode)",
            f"the process of model tensorrt_llm (process {model.pid}) has not responded for 4 s "
            "(stopped by a signal)",
        ],
        2,
    )
    assert (jobs(), processes_of(tllm)) == ([], [])


def test_each_rank_is_started_with_its_own_arguments(tmp_path: Path) -> None:
    """The stand-in for Triton prints its arguments; folders have spaces in their names."""
    triton = tmp_path / "my triton"
    triton.write_text(
        '#!/bin/sh\necho rank "$SLURM_PROCID" of "$SLURM_NTASKS": "$@"\n'
        # Slurm ends all ranks as soon as one of them fails.
        "until [ -s server_0.log ] && [ -s server_1.log ]; do sleep 0.1; done\nexit 3\n"
    )
    triton.chmod(0o755)
    # The plugin may be listed although its library is missing.
    has_pmix = not subprocess.run(("srun", "--mpi=pmix", "true"), check=False).returncode
    plan = plan_slurm(
        RANKED,
        TritonInstallation(triton, "PATH"),
        SlurmOptions(gpus_per_node=0, mpi="pmix" if has_pmix else "none"),
        LaunchOptions(host="0.0.0.0"),
        directory=(folder := make_job_folder(tmp_path / "100% mine", "ranked")),
        environ={},
    )
    job = submit_job(render_script(plan), RANKED, folder)
    wait_until(lambda: not query_slurm(job.id).is_alive, timeout_s=60)
    first, second = ((folder / f"server_{rank}.log").read_text() for rank in range(2))
    assert first.startswith(f"rank 0 of 2: --model-repository={RANKED.repository} ")
    assert "--http-port=" in first
    assert second.startswith("rank 1 of 2: ")
    assert second.endswith("--model-control-mode=explicit --load-model=tensorrt_llm\n")
    assert (folder / "exit-code").read_text() == "3\n"


def test_queued_job_reports_its_reason_and_can_be_stopped(fresh_home: Callable[[], Tllm]) -> None:
    tllm = fresh_home()
    tllm.done("deploy", "slurm", "-m", "demo", "--sbatch=--hold", "--submit")
    status = server(tllm)
    assert (status["state"], status["http"]) == ("queued", None)
    assert "JobHeldUser" in tllm.done("status")
    result = tllm("infer", "Hello")
    assert result.returncode == 3
    assert "The server for demo has no address yet." in result.stderr
    assert "is PENDING (JobHeldUser)" in result.stderr
    tllm.done("stop")
    assert jobs() == []


def test_refused_job_reports_the_error_of_slurm(fresh_home: Callable[[], Tllm]) -> None:
    tllm = fresh_home()
    refused = tllm("deploy", "slurm", "-m", "demo", "--partition", "nowhere", "--submit")
    assert refused.returncode == 3
    assert "invalid partition specified: nowhere" in refused.stderr
    assert json.loads(tllm.done("status", "--json")) == {"servers": []}


def test_job_of_a_failed_server_reports_the_reason(fresh_home: Callable[[], Tllm]) -> None:
    tllm = fresh_home()
    config = tllm.home / "models" / "demo" / "preprocessing" / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "preprocessing"', 'name: "other"'))
    tllm.done("deploy", "slurm", "-m", "demo", "--submit")
    wait_for(tllm, "failed")
    why = server(tllm)["why"]
    assert "is FAILED (NonZeroExitCode)" in why[0]
    assert any("preprocessing" in line for line in why[1:])
    tllm.done("stop")
    assert json.loads(tllm.done("status", "--json")) == {"servers": []}


def test_job_state_is_unknown_while_slurm_is_unreachable(
    fresh_home: Callable[[], Tllm], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tllm = fresh_home()
    tllm.done("deploy", "slurm", "-m", "demo", "--sbatch=--hold", "--submit")
    with monkeypatch.context() as patch:
        # The configuration of a controller that does not run.
        (conf := tmp_path / "slurm.conf").write_text(
            "ClusterName=away\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=9\n"
            "AuthType=auth/none\nNodeName=localhost\nPartitionName=p Nodes=localhost\n"
            "MessageTimeout=2\n"  # seconds; the default of 10 makes each command take 9 s
        )
        patch.setenv("SLURM_CONF", str(conf))
        assert server(tllm)["state"] == "unknown"
        stopped = tllm("stop")
        assert stopped.returncode == 3
        assert "Slurm did not cancel job" in stopped.stderr
    assert server(tllm)["state"] == "queued"
    tllm.done("stop")
    assert jobs() == []
