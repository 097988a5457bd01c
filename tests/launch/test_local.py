"""Servers started and stopped as the commands do it, with the fake server in Triton's place."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import filelock
import pytest

from tests.build.tensorrt_files import tensorrt_engine
from tests.launch.container_engines import calls_of
from tests.launch.container_engines import write_engine as write_container_engine
from tests.launch.samples import fake_container_plan, fake_plan, pids_in
from tests.repository.samples import add_model
from tests.waiting import is_gone, wait_until
from trtllm_serve_cli.build import Machine
from trtllm_serve_cli.errors import BadInput, LaunchFailed, MissingPart, UnknownModel
from trtllm_serve_cli.launch import (
    LaunchPlan,
    RunningServer,
    SlurmJob,
    find_running,
    launch,
    list_servers,
    plan_again,
    plan_for_this_machine,
    run_in_foreground,
    stop_server,
)
from trtllm_serve_cli.launch.local import clear_remains
from trtllm_serve_cli.launch.machine import find_embedded_root
from trtllm_serve_cli.launch.running import read_server
from trtllm_serve_cli.launch.state import (
    ServerState,
    describe_myself,
    read_state,
    started_at_s,
    write_state,
    write_stop_timeout,
)
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository import ServingOptions, plan_repository, write_repository

# A supervisor is meant to outlive the one that started it.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")

NGC = "nvcr.io/nvidia/tritonserver"
needs_embedded = pytest.mark.skipif(
    find_embedded_root() is None, reason="needs the extra: embedded"
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path, tmp_path / "engines")


def start(plan: LaunchPlan) -> RunningServer:
    return launch(plan, on_progress=lambda loading: None)


def start_in_vain(plan: LaunchPlan) -> None:
    with pytest.raises(LaunchFailed):
        start(plan)


def test_server_lives_from_launch_to_stop(home: Home) -> None:
    server = start(fake_plan(home.servers))
    assert (server.phase, find_running(home, "m")) == ("ready", server)
    stop_server(server)
    assert [is_gone(pid) for pid in pids_in(server.plan.log)] == [True]
    assert (list_servers(home), read_server(server.directory).phase) == ([], "stopped")


def test_folder_with_the_token_is_the_users_alone(home: Home) -> None:
    server = start(fake_plan(home.servers))
    stop_server(server)
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in (server.directory, *server.directory.glob("[pr]*"))
    }
    assert modes == {
        server.directory.name: 0o700,
        "plan.json": 0o600,
        "restricted-api-token": 0o600,
    }
    assert (server.directory / "restricted-api-token").read_text() == "secret\n"


def test_backends_are_linked(home: Home, tmp_path: Path) -> None:
    links = {"backends/python/stub": str(tmp_path / "stub")}
    plan = dataclasses.replace(fake_plan(home.servers, "fail"), backends=links)
    for _ in range(2):
        with pytest.raises(LaunchFailed):
            start(plan)
    assert (plan.directory / "backends/python/stub").readlink() == tmp_path / "stub"


def test_failed_start_shows_the_cause_and_leaves_nothing_running(home: Home) -> None:
    plan = fake_plan(home.servers, "fail", "child")
    with pytest.raises(LaunchFailed) as raised:
        start(plan)
    assert str(raised.value) == (
        "The server for m did not become ready.\n"
        "Why: m: Internal: ModuleNotFoundError: No module named 'nowhere'\n"
        f"Next: `tllm doctor` checks this machine; the whole log is {plan.log}"
    )
    assert all(is_gone(pid) for what in ("server", "child") for pid in pids_in(plan.log, what))


def test_progress_tells_what_is_still_loading(home: Home) -> None:
    told: list[list[str]] = []
    server = launch(fake_plan(home.servers), on_progress=told.append)
    stop_server(server)
    assert told[0] == ["m", "n"]
    assert set(map(tuple, told)) <= {("m", "n"), ("n",)}


def test_engine_that_does_not_fit_here_is_explained(home: Home) -> None:
    plan = fake_plan(home.servers, "misfit")
    with pytest.raises(LaunchFailed) as raised:
        start(plan)
    assert raised.value.why.endswith(
        "\n       that is: the engine was built by another TensorRT version, or for another kind "
        "of GPU"
    )
    assert raised.value.next_step == (
        "build it with --force on the kind of GPU and in the container that serve it; the whole "
        f"log is {plan.log}"
    )


def test_interrupted_start_leaves_nothing_running(home: Home) -> None:
    plan = fake_plan(home.servers, "silent")

    def interrupt(loading: object) -> None:
        if pids_in(plan.log):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(plan, on_progress=interrupt)
    assert is_gone(pids_in(plan.log)[0])
    assert read_state(plan.directory).phase == "stopped"


def test_supervisor_that_cannot_work_is_reported(home: Home) -> None:
    plan = dataclasses.replace(fake_plan(home.servers), timeout_s="soon")  # type: ignore[arg-type]
    with pytest.raises(
        LaunchFailed, match="supervisor ended before the server was ready"
    ) as raised:
        start(plan)
    assert "TypeError" in raised.value.why


def test_port_in_use_names_the_process(home: Home) -> None:
    server = start(fake_plan(home.servers))
    try:
        with pytest.raises(LaunchFailed, match=r"is in use.*\n.*\(pid \d+\) listens on it"):
            start(server.plan)
    finally:
        stop_server(server)


def test_server_that_holds_no_port_yet_is_not_started_twice(home: Home) -> None:
    plan = fake_plan(home.servers, "closed")
    first = threading.Thread(target=start_in_vain, args=(plan,))
    first.start()
    wait_until(lambda: pids_in(plan.log))
    with pytest.raises(LaunchFailed, match="There is a server for the HTTP port") as raised:
        start(plan)
    assert raised.value.why == "another tllm is starting it"
    stop_server(read_server(plan.directory))
    first.join()
    assert is_gone(pids_in(plan.log)[0])


def test_server_between_two_lives_is_not_started_twice(home: Home) -> None:
    plan = fake_plan(home.servers)
    plan.directory.mkdir(parents=True)
    write_state(plan.directory, describe_myself("restarting"))
    with pytest.raises(LaunchFailed, match="There is a server for the HTTP port") as raised:
        start(plan)
    assert raised.value.why == f"it is restarting, and its supervisor is {os.getpid()}"
    with filelock.FileLock(plan.directory / "start.lock", timeout=0):
        pass


def test_stopping_a_server_that_is_gone_hurts_nobody(home: Home) -> None:
    """Its supervisor's process id belongs to this process now."""
    server = RunningServer(
        home.servers, fake_plan(home.servers), ServerState("ready", os.getpid(), 0.0)
    )
    stop_server(server)


def test_job_that_is_to_give_requests_time_is_refused(home: Home) -> None:
    state = ServerState("ready", 0, 0.0)
    job = RunningServer(home.servers, fake_plan(home.servers), state, SlurmJob("12", "RUNNING"))
    with pytest.raises(BadInput) as raised:
        stop_server(job, 60)
    assert str(raised.value) == (
        "Slurm job 12 cannot be told to let requests in flight end.\n"
        "Why: Slurm ends all processes of a job at once, the models' too\n"
        "Next: tllm stop -m m   (it cuts them off)"
    )


def test_job_is_started_again_where_it_can_be_followed(home: Home) -> None:
    plan = dataclasses.replace(fake_plan(home.servers), argv=("sbatch", "/jobs/job.sbatch"))
    job = RunningServer(home.servers, plan, ServerState("ready", 0, 0.0), SlurmJob("12", "RUNNING"))
    with pytest.raises(BadInput) as raised:
        plan_again(home, job)
    assert str(raised.value) == (
        "Slurm job 12 cannot be started again from here.\n"
        "Why: it is a job of Slurm's; what it was submitted with stands in /jobs/job.sbatch\n"
        "Next: tllm stop -m m, and tllm deploy slurm -m m --submit …"
    )


def test_supervisor_has_the_time_that_another_stop_gave_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtllm_serve_cli.launch.local._ENDING_S", 0.0)
    plan = dataclasses.replace(fake_plan(home.servers), exit_timeout_s=0)
    plan.directory.mkdir(parents=True)
    write_stop_timeout(plan.directory, 600)
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True)"
    command = (sys.executable, "-c", f"{code}; input()")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as draining:
        assert draining.stdin is not None and draining.stdout is not None
        draining.stdout.readline()
        state = dataclasses.replace(
            describe_myself("stopping"),
            supervisor_pid=draining.pid,
            supervisor_started_at=started_at_s(draining.pid),
        )
        looks: list[object] = []

        def end_at_the_third_look(in_flight: object) -> None:
            looks.append(in_flight)
            if len(looks) == 3:
                draining.communicate("\n")

        stop_server(RunningServer(plan.directory, plan, state), on_progress=end_at_the_third_look)
    assert (len(looks), draining.returncode) == (3, 0)


def test_foreground_ends_with_the_server(home: Home) -> None:
    plan, ready = fake_plan(home.servers), threading.Event()

    def stop_it() -> None:
        ready.set()
        stop_server(read_server(plan.directory))

    run_in_foreground(plan, on_ready=stop_it)
    assert (ready.is_set(), is_gone(pids_in(plan.log)[0])) == (True, True)


def test_foreground_that_fails_says_why(home: Home) -> None:
    with pytest.raises(LaunchFailed, match="No module named 'nowhere'"):
        run_in_foreground(fake_plan(home.servers, "fail"), on_ready=lambda: None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_foreground_takes_the_server_with_it(home: Home, number: signal.Signals) -> None:
    plan = fake_plan(home.servers)
    code = (
        "import sys; from trtllm_serve_cli.launch import LaunchPlan, run_in_foreground\n"
        "plan = LaunchPlan.from_json(sys.argv[1])\n"
        "run_in_foreground(plan, on_ready=lambda: print('ready', flush=True))"
    )
    with subprocess.Popen(
        (sys.executable, "-c", code, plan.to_json()),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as attached:
        assert attached.stdout is not None
        assert attached.stdout.readline() == b"ready\n"
        attached.send_signal(number)
    wait_until(lambda: read_state(plan.directory).phase == "stopped")
    assert is_gone(pids_in(plan.log)[0])


def test_plan_for_a_model_that_was_not_imported(home: Home) -> None:
    with pytest.raises(UnknownModel, match="No model 'nope' has been imported"):
        plan_for_this_machine(home, ["nope"], {})


def test_plan_for_this_machine_has_a_token_of_its_own(home: Home) -> None:
    folder = home.models / "m"
    folder.mkdir(parents=True)
    engine = {"kind": "openvino", "path": "/e", "source": "gguf:/m", "fingerprint": "f"}
    manifest = {"name": "m", "created_at": 0, "engine": engine, "models": ["m"]}
    (folder / "tllm.json").write_text(json.dumps(manifest))
    plans = [plan_for_this_machine(home, [], {}) for _ in range(2)]
    assert len({plan.endpoint.restricted_token for plan in plans}) == 2


def test_engine_of_two_ranks_is_planned_as_two_processes(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_repository("mine", tensorrt_engine(tmp_path), ServingOptions())
    write_repository(plan, home.models / "mine")
    for program in ("mpirun", "tritonserver"):
        path = tmp_path / "bin" / program
        path.parent.mkdir(exist_ok=True)
        path.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    made = plan_for_this_machine(home, ["mine"], {"mode": "mpi", "gpus": "0,1"})
    assert (made.argv[0], made.argv.count("-n")) == ("mpirun", 2)
    assert made.argv.count("--load-model=tensorrt_llm") == 1
    assert made.environ == {"CUDA_VISIBLE_DEVICES": "0,1"}
    with pytest.raises(BadInput, match="engine needs 2 processes"):
        plan_for_this_machine(home, ["mine"], {})


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    write_container_engine(tmp_path / "bin", "docker", info="exit 1")
    return write_container_engine(tmp_path / "bin", "podman")


def test_what_a_killed_server_left_in_a_container_goes_with_the_next_start(
    home: Home, podman: Path
) -> None:
    plan = fake_container_plan(home.servers, podman)
    first = start(plan)
    for pid in (first.state.supervisor_pid, first.state.server_pid):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not read_server(plan.directory).is_running)
    # What the container itself would be: it holds the ports.
    wait_until(lambda: is_gone(pids_in(plan.log)[0]))
    before = len(calls_of(podman, "rm"))
    clear_remains(plan.directory)
    assert len(calls_of(podman, "rm")) == before + 1
    second = start(plan)
    clear_remains(plan.directory)
    assert second.phase == "ready"
    stop_server(second)


def test_remains_are_nobody_elses_while_it_is_started(home: Home, podman: Path) -> None:
    plan = fake_container_plan(home.servers, podman)
    stop_server(start(plan))
    before = len(calls_of(podman, "rm"))
    with filelock.FileLock(plan.directory / "start.lock"):
        clear_remains(plan.directory)
    assert len(calls_of(podman, "rm")) == before


def add_tensorrt_model(home: Home, folder: Path) -> None:
    plan = plan_repository("mine", tensorrt_engine(folder), ServingOptions())
    write_repository(plan, home.models / "mine")


@needs_embedded
def test_auto_is_a_container_where_the_triton_here_cannot(
    home: Home, tmp_path: Path, podman: Path
) -> None:
    add_tensorrt_model(home, tmp_path)
    write_container_engine(podman.parent, "docker")
    (podman.parent / "nvidia-container-runtime-hook").touch(0o755)
    made = plan_for_this_machine(home, [], {"mode": "auto"})
    assert (made.mode, made.container.image) == ("container", f"{NGC}:26.02-trtllm-python-py3")
    assert made.argv.count("mpirun") == 1
    assert made.reason == (
        "In a container, since by itself it cannot: The Triton in the package nvidia-pytriton "
        "cannot serve mine (the model needs Triton's backend tensorrtllm, which only containers "
        "have)"
    )
    assert made.reason in made.describe()


@needs_embedded
def test_auto_without_any_way_says_both_reasons(home: Home, tmp_path: Path, podman: Path) -> None:
    add_tensorrt_model(home, tmp_path)
    write_container_engine(podman.parent, "podman", info="exit 1")
    with pytest.raises(MissingPart, match="mine can be served neither by") as raised:
        plan_for_this_machine(home, [], {"mode": "auto"})
    assert "the model needs Triton's backend tensorrtllm" in raised.value.why
    assert "No program here runs containers" in raised.value.why


def test_auto_prefers_the_triton_here(home: Home, podman: Path) -> None:
    add_model(home, "m")
    made = plan_for_this_machine(home, [], {"mode": "auto", "image": "mine:1"})
    assert (made.mode, made.container, made.reason) == ("local", None, "")


def test_what_is_wrong_anywhere_is_said_once(home: Home, podman: Path) -> None:
    add_model(home, "m")
    with pytest.raises(BadInput, match=r"^The ports 1, 1, 2 are not three different ones"):
        ports = {"http_port": 1, "grpc_port": 1, "metrics_port": 2}
        plan_for_this_machine(home, [], {"mode": "auto", "image": "mine:1", **ports})


def test_engine_of_another_version_is_no_matter_in_a_container(
    home: Home, tmp_path: Path, podman: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_tensorrt_model(home, tmp_path)
    write_container_engine(podman.parent, "docker")
    (podman.parent / "nvidia-container-runtime-hook").touch(0o755)
    monkeypatch.setattr(
        "trtllm_serve_cli.launch.local.look_at_machine", lambda: Machine(tensorrt_llm="0.9.0")
    )
    with pytest.raises(BadInput, match="was built by another TensorRT-LLM"):
        plan_for_this_machine(home, [], {"mode": "mpi"})
    assert plan_for_this_machine(home, [], {"mode": "container"}).mode == "container"
