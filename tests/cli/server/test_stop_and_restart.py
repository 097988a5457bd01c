"""Tests of the commands `tllm stop` and `tllm restart` with a fake tritonserver."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.cli.running import Tllm
from tests.fakes.container_engines import calls_of, write_engine
from tests.waiting import is_gone, wait_until
from trtllm_serve_cli.launch.launch_options import DRAIN_S
from trtllm_serve_cli.paths import Home

# A supervisor outlives the process that started it.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


def test_stop_all_without_a_server_is_done(tllm: Tllm) -> None:
    assert tllm("stop", "--all") == (0, "", "No server is running.\n")


def test_interrupted_stop_tells_how_to_continue(
    tllm: Tllm, ports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **options: object) -> None:
        raise KeyboardInterrupt

    tllm("start", *ports)
    with monkeypatch.context() as patched:
        patched.setattr("trtllm_serve_cli.launch.supervisor.stopping.stop_server", interrupt)
        code, _, err = tllm("stop")
    assert (code, err.splitlines()[1:]) == (
        130,
        [
            f"Interrupted. 127.0.0.1:{ports[1]} rejects new requests and stops as soon as its "
            "requests in flight have finished.",
            f"Next: run `tllm stop -u 127.0.0.1:{ports[1]}` to wait, or add --timeout 0 to cancel "
            "the requests",
        ],
    )


def test_stop_and_restart_as_json_are_alone_on_stdout(tllm: Tllm, ports: list[str]) -> None:
    tllm("start", *ports)
    code, out, _ = tllm("restart", "--json")
    assert (code, json.loads(out)["state"]) == (0, "ready")
    code, out, _ = tllm("stop", "--json")
    stopped = {"models": ["m"], "http": f"127.0.0.1:{ports[1]}", "job": None, "why": []}
    assert (code, json.loads(out)) == (
        0, {"servers": [{**stopped, "had_ended": False, "error": None}]},
    )  # fmt: skip
    assert json.loads(tllm("stop", "--all", "--json")[1]) == {"servers": []}


def test_help_states_the_default_drain_time(tllm: Tllm) -> None:
    text = " ".join(tllm("stop", "--help")[1].split())
    assert f"Default: {DRAIN_S}, or 0 for Slurm jobs." in text


def test_restart_keeps_the_options_of_the_server(tllm: Tllm, home: Home, ports: list[str]) -> None:
    tllm("start", *ports, "--", "--log-info=true")
    before = json.loads(tllm("status", "--json")[1])["servers"][0]
    code, _, err = tllm("restart")
    after = json.loads(tllm("status", "--json")[1])["servers"][0]
    assert (code, err.startswith("Stopping m on ")) == (0, True)
    assert is_gone(before["supervisor_pid"])
    assert (after["state"], after["http"]) == ("ready", before["http"])
    plan = json.loads((home.servers / ports[1] / "plan.json").read_text())
    assert plan["argv"][-1] == "--log-info=true"


def test_restart_fetches_an_image_before_it_stops_anything(
    tllm: Tllm, home: Home, ports: list[str], tmp_path: Path
) -> None:
    write_engine(tmp_path / "bin", "podman", image="exit 0")
    container = ("--mode", "container", "--container-engine", "podman", "--image", "img")
    assert tllm("start", *ports, *container, "--host", "0.0.0.0")[0] == 0
    before = json.loads(tllm("status", "--json")[1])["servers"][0]
    # The image was removed after the start.
    write_engine(tmp_path / "bin", "podman", pull="echo unauthorized >&2; exit 125")
    code, _, err = tllm("restart")
    assert (code, "Stopping" in err) == (3, False)
    assert "Triton listens on 0.0.0.0 without authentication" in err
    assert "Error: The image img could not be pulled." in err
    after = json.loads(tllm("status", "--json")[1])["servers"][0]
    assert (after["state"], after["supervisor_pid"]) == ("ready", before["supervisor_pid"])
    write_engine(tmp_path / "bin", "podman", pull="echo Copying blob")
    code, _, err = tllm("restart")
    assert (code, "Fetching img …\nCopying blob\nStopping m on " in err) == (0, True)


@pytest.mark.parametrize("arguments", [(), ("--all",), ("-m", "m")])
def test_stop_removes_the_container_that_a_killed_server_left(
    tllm: Tllm, home: Home, ports: list[str], tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    podman = write_engine(tmp_path / "bin", "podman", image="exit 0")
    container = ("--mode", "container", "--container-engine", "podman", "--image", "img")
    tllm("start", *ports, *container)
    server = json.loads(tllm("status", "--json")[1])["servers"][0]
    for pid in (server["supervisor_pid"], server["server_pid"]):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: tllm("status")[1].startswith("m: died"))
    before = len(calls_of(podman, "rm"))
    code, _, err = tllm("stop", *arguments)
    assert (code, err) == (0, f"127.0.0.1:{ports[1]} had already ended.\n")
    assert len(calls_of(podman, "rm")) == before + 1


def test_server_that_died_is_started_again(tllm: Tllm, ports: list[str]) -> None:
    tllm("start", *ports)
    os.kill(json.loads(tllm("status", "--json")[1])["servers"][0]["supervisor_pid"], signal.SIGKILL)
    wait_until(lambda: "m: died\n  the server's supervisor was killed\n" in tllm("status")[1])
    assert tllm("restart")[0] == 0
    assert tllm("status")[1].startswith("m: ready")
