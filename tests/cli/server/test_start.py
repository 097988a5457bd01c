"""Tests of the command `tllm start` with a fake tritonserver."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import Tllm
from tests.fakes.container_engines import calls_of, write_engine
from tests.ports import free_ports
from tests.samples.launch_plans import fake_plan, pids_in
from tests.samples.repositories import add_model
from tests.waiting import is_gone, wait_until
from trtllm_serve_cli.cli.server.start import show_loading
from trtllm_serve_cli.launch.triton.triton_install import find_embedded_root
from trtllm_serve_cli.paths import Home, find_home
from trtllm_serve_cli.repository.settings.engine_references import find_users

# A supervisor outlives the process that started it.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


def test_loading_prints_each_model_once(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    with show_loading(fake_plan(home.servers)) as report:
        for loading in (("a", "b", "c"), ("a", "b", "c"), ("b", "a"), ("b",), (), ()):
            report(loading)
    assert capsys.readouterr().err.splitlines() == [
        "Loading a, b, c …",
        "Loaded c (2 models still loading)",
        "Loaded a (1 model still loading)",
        "Generating the first token …",
    ]


def test_server_from_start_to_stop(tllm: Tllm, ports: list[str]) -> None:
    code, out, err = tllm("start", *ports)
    assert (code, out) == (0, "")
    assert err.splitlines()[-1] == 'Next: tllm infer "What is ML?"'
    assert f"  HTTP     http://127.0.0.1:{ports[1]}/v2/models/m/generate\n" in err
    code, out, _ = tllm("status")
    assert (code, out.splitlines()[0].startswith("m: ready, up ")) == (0, True)
    code, out, err = tllm("stop")
    assert (code, out) == (0, "")
    assert err == f"Stopping m on 127.0.0.1:{ports[1]} …\nStopped.\n"
    assert tllm("status") == (0, "", "No server is running. Next: run `tllm start`\n")
    code, out, err = tllm("logs", "-n", "1")
    assert (code, out.count("\n")) == (0, 1)
    assert err == f"{find_home().servers / ports[1] / 'server.log'}:\n"


def test_interrupted_start_reports_that_the_server_was_stopped(
    tllm: Tllm, ports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("trtllm_serve_cli.launch.supervisor.lifecycle.launch", interrupt)
    code, out, err = tllm("start", *ports)
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == "Interrupted. The server was stopped."


def test_start_as_json_is_alone_on_stdout(tllm: Tllm, ports: list[str]) -> None:
    code, out, _ = tllm("start", *ports, "--json")
    started = json.loads(out)
    assert (code, started["models"], started["state"]) == (0, ["m"], "ready")
    code, out, err = tllm("status", "--json")
    (server,) = json.loads(out)["servers"]
    assert (code, err, server["server_pid"]) == (0, "", started["server_pid"])
    assert sum(server["memory_bytes"].values()) > 1_000_000


def test_dry_run_prints_the_command_and_starts_nothing(
    tllm: Tllm, home: Home, ports: list[str]
) -> None:
    code, out, err = tllm("start", *ports, "--dry-run")
    assert (code, err, home.servers.exists()) == (0, "", False)
    assert f"  --http-port={ports[1]} \\\n" in out
    code, out, err = tllm("start", *ports, "--dry-run", "--json")
    assert (code, err, f"--http-port={ports[1]}" in json.loads(out)["argv"]) == (0, "", True)


def test_missing_image_is_fetched_with_progress(
    tllm: Tllm, home: Home, ports: list[str], tmp_path: Path
) -> None:
    podman = write_engine(tmp_path / "bin", "podman", pull="echo Copying blob")
    container = ("--mode", "container", "--container-engine", "podman", "--image", "img")
    code, out, err = tllm("start", *ports, *container, "--dry-run")
    assert (code, err, "  podman \\\n  run \\\n" in out) == (0, "", True)
    assert calls_of(podman, "pull") == []
    code, out, err = tllm("start", *ports, *container, "--json")
    assert (code, json.loads(out)["mode"]) == (0, "container")
    assert err.startswith("Fetching img …\nCopying blob\n")
    assert tllm("stop")[0] == 0


def test_chosen_mode_is_reported(tllm: Tllm, home: Home, ports: list[str], tmp_path: Path) -> None:
    (tmp_path / "bin" / "tritonserver").unlink()
    write_engine(tmp_path / "bin", "docker", info="exit 1")
    write_engine(tmp_path / "bin", "podman")
    mode = ("--mode", "auto", "--image", "img")
    code, out, _ = tllm("start", *ports, *mode, "--dry-run")
    # An embedded Triton is used if it is installed.
    assert (code, "Serve m from" in out) == (0, True)
    assert ("Using a container because " in out) == (find_embedded_root() is None)


def test_two_servers_are_distinguished(tllm: Tllm, home: Home, ports: list[str]) -> None:
    add_model(home, "n")
    *names, no_openai = ports[::2]
    others = [w for pair in zip(names, map(str, free_ports(3)), strict=True) for w in pair]
    others.append(no_openai)
    tllm("start", "-m", "m", *ports), tllm("start", "-m", "n", *others)
    code, _, err = tllm("stop")
    assert (code, "2 servers are running." in err) == (3, True)
    code, _, err = tllm("logs")
    assert (code, "2 servers are running." in err) == (3, True)
    assert tllm("logs", "-u", f"localhost:{ports[1]}", "-n", "0")[0] == 0
    code, _, err = tllm("stop", "-u", "localhost:9")
    assert (code, "No tllm server is running on 127.0.0.1:9." in err) == (3, True)
    assert tllm("stop", "-m", "n")[0] == 0
    assert tllm("stop", "--all")[2] == f"Stopping m on 127.0.0.1:{ports[1]} …\nStopped.\n"


def test_several_models_in_one_server(tllm: Tllm, home: Home, ports: list[str]) -> None:
    add_model(home, "n")
    code, _, err = tllm("start", "-m", "m", "-m", "n", *ports)
    assert (code, err.splitlines()[-1]) == (0, 'Next: tllm infer -m m "What is ML?"')
    assert f"  HTTP     http://127.0.0.1:{ports[1]}/v2/models/n/generate\n" in err
    served = home.servers / ports[1] / "models"
    assert {"m", "m_tensorrt_llm", "n", "n_ensemble"} <= {path.name for path in served.iterdir()}
    assert tllm("status")[1].startswith("m, n: ready, up ")
    code, _, err = tllm("infer", "hello")
    assert (code, "The server has several models, but no model was specified." in err) == (
        3,
        True,
    )
    code, _, err = tllm("bench", "token-norm-dist")
    assert (code, "Next: select a model with -m, for example -m m\n" in err) == (3, True)
    assert tllm("remove", "n", "--yes")[0] == 3
    _, _, err = tllm("set", "n", "max_num_tokens=128")
    assert err.endswith("Next: tllm restart -m n\n")
    assert tllm("stop", "-m", "n")[0] == 0


def test_folder_is_served_with_an_imported_model(tllm: Tllm, home: Home, tmp_path: Path) -> None:
    path = add_model(Home(tmp_path / "elsewhere", home.engines), "n").path
    code, out, _ = tllm("start", "-m", "m", "--repo", str(path), "--dry-run", "--json")
    assert (code, json.loads(out)["models"]) == (0, ["m", "n"])
    code, out, _ = tllm("start", "-m", "n", "--repo", str(path), "--dry-run", "--json")
    assert (code, json.loads(out)["repository"]) == (0, str(path))


def test_served_copy_of_a_repository_keeps_its_engine(
    tllm: Tllm, home: Home, ports: list[str], tmp_path: Path
) -> None:
    copy = shutil.copytree(home.models / "m", tmp_path / "copy")
    assert tllm("start", "--repo", str(copy), *ports)[0] == 0
    ((engine, users),) = find_users(home).items()
    assert (engine, sorted(users)) == (home.engines / "m", sorted([copy, home.models / "m"]))


def test_start_reports_the_runtime_of_another_version(
    tllm: Tllm, ports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = "trtllm_serve_cli.repository.model.runtime_copy._read_package"
    monkeypatch.setattr(package, lambda: {"__init__.py": "new"})
    _, _, err = tllm("start", *ports)
    tllm("stop")
    assert err.startswith("m uses the runtime of another version of tllm. To update it, stop its")


@pytest.mark.whole_runtime
def test_foreground_stays_until_interrupted(tllm: Tllm, home: Home, ports: list[str]) -> None:
    command = (sys.executable, "-m", "trtllm_serve_cli.cli.main", "start", "--foreground", *ports)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = list(iter(process.stderr.readline, "Ctrl-C stops the server.\n"))
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert lines[1].startswith("m is ready after ")
    assert f"  HTTP     http://127.0.0.1:{ports[1]}/v2/models/m/generate\n" in lines
    assert lines[-1] == 'Next: tllm infer "What is ML?"\n'
    assert (process.returncode, "Traceback" in rest) == (130, False)
    log = home.servers / ports[1] / "server.log"
    wait_until(lambda: all(is_gone(pid) for pid in pids_in(log)))


def test_declared_switch_can_be_turned_off(tllm: Tllm, home: Home, tmp_path: Path) -> None:
    (tmp_path / "bin" / "mpirun").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "mpirun").chmod(0o755)
    file = home.models / "m" / "tllm.json"
    launch = {"mode": "mpi", "oversubscribe": True, "multi_model": True}
    file.write_text(json.dumps({**json.loads(file.read_text()), "declaration": {"launch": launch}}))
    code, _, err = tllm("start", "--dry-run")
    assert (code, "omit --multi-model" in err) == (3, True)
    code, out, _ = tllm("start", "--no-multi-model", "--dry-run")
    assert (code, "--oversubscribe" in out) == (0, True)
    code, out, _ = tllm("start", "--no-multi-model", "--no-oversubscribe", "--dry-run")
    assert (code, "--oversubscribe" in out) == (0, False)


def test_start_with_a_warm_up_reports_its_duration(tllm: Tllm, ports: list[str]) -> None:
    assert "Warm-up:\n  short prompt: " in tllm("start", *ports, "--warmup", "--dry-run")[1]
    code, _, err = tllm("start", *ports, "--warmup")
    assert (code, ", warm-up " in err, "warm-up request" in err) == (0, True, False), err
    (server,) = json.loads(tllm("status", "--startup", "--json")[1])["servers"]
    assert [each["name"] for each in server["starts"][0]["stages"]][-1] == "warm-up"
