"""Processes that die are reported and restarted."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.alive import answers, command_of, find_process, processes_of
from tests.e2e.conftest import TLLM, Tllm
from tests.ports import free_ports
from tests.waiting import wait_until
from trtllm_serve_cli.client.ask import generate, stream
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.errors import NoServer, RequestFailed
from trtllm_serve_cli.launch.supervisor.server_processes import wait_until_dead
from trtllm_serve_cli.metrics.fetch import fetch_metrics
from trtllm_serve_cli.metrics.parse import parse_metrics

# Blocks until the server drains, which creates a file for each model in this folder.
WAIT_FOR_THE_END = """
import os, time
while not os.listdir(os.environ["TLLM_DRAINING"]):
    time.sleep(0.05)
"""


def servers_of(tllm: Tllm) -> list[dict[str, Any]]:
    servers: list[dict[str, Any]] = json.loads(tllm.done("status", "--json"))["servers"]
    return servers


def port_options(ports: Sequence[int]) -> list[str]:
    names = ("http", "grpc", "metrics")
    words = [f"--{name}-port={port}" for name, port in zip(names, ports, strict=True)]
    return [*words, "--no-openai"]


def port_of(endpoint: Endpoint) -> int:
    return int(endpoint.http.rpartition(":")[2])


def assert_nothing_is_left(
    tllm: Tllm, http_port: int, everything: Sequence[psutil.Process] = ()
) -> None:
    """Assert that no process and no shared memory of the server on this port exists."""
    assert wait_until_dead(everything, 60) == []
    folder = str(tllm.home / "servers" / str(http_port))
    assert [each for each in psutil.process_iter() if folder in command_of(each)] == []
    assert list(Path("/dev/shm").glob(f"tllm-{http_port}-*")) == []


def test_requests_of_a_dead_worker_fail_and_it_is_restarted(
    served: Tllm, endpoint: Endpoint
) -> None:
    pieces = stream(
        endpoint, "demo", GenerateRequest("Once upon a time", max_tokens=4000, min_tokens=4000)
    )
    next(pieces)
    find_process(served, "tllm_runtime.worker").send_signal(signal.SIGKILL)
    with pytest.raises(RequestFailed, match="engine worker died"):
        list(pieces)
    wait_until(lambda: answers(endpoint), 180)
    snapshot = parse_metrics(fetch_metrics(endpoint.metrics), 0.0)
    assert (snapshot.value("tllm_engine_worker_restarts") or 0) >= 1


def test_server_is_restarted_if_a_model_process_dies(served: Tllm, endpoint: Endpoint) -> None:
    before = served.state().restarts
    find_process(served, "/tensorrt_llm_bls/1/model.py").send_signal(signal.SIGKILL)
    wait_until(lambda: served.is_back(before + 1), 180)
    assert answers(endpoint)


def test_nothing_outlives_a_supervisor_that_is_killed_under_load(
    light_home: Callable[[], Tllm],
) -> None:
    tllm = light_home()
    assert tllm.start().returncode == 0
    endpoint = tllm.endpoint()
    streaming = threading.Semaphore(0)

    def stream_until_it_fails() -> None:
        request = GenerateRequest("Once upon a time", max_tokens=4000, min_tokens=4000)
        with contextlib.suppress(RequestFailed, NoServer):
            for _ in stream(endpoint, "demo", request):
                streaming.release()

    with ThreadPoolExecutor(16) as pool:
        for _ in range(16):
            pool.submit(stream_until_it_fails)
        for _ in range(200):
            streaming.acquire()
        everything = processes_of(tllm)
        everything[0].send_signal(signal.SIGKILL)
    assert_nothing_is_left(tllm, port_of(endpoint), everything)
    result = tllm("infer", "hi")
    assert result.returncode == 3 and "is no longer running" in result.stderr


def test_stop_leaves_no_process(light_home: Callable[[], Tllm]) -> None:
    tllm = light_home()
    assert tllm.start().returncode == 0
    everything = processes_of(tllm)
    tllm.done("stop")
    alive = wait_until_dead(everything, 20)
    assert (alive, tllm.done("status", "--json").split()) == ([], ["{", '"servers":', "[]", "}"])


def test_failed_requests_do_not_delay_a_stop(light_home: Callable[[], Tllm]) -> None:
    tllm = light_home()
    assert tllm.start().returncode == 0
    endpoint = tllm.endpoint()
    # About one in twenty of them is cancelled at the wrong moment.
    for _ in range(200):
        with pytest.raises(RequestFailed, match="request at least 1"):
            generate(endpoint, "demo", GenerateRequest("hi", max_tokens=0), "grpc")
    tllm.done("stop")
    (log,) = (tllm.home / "servers").glob("*/server.log")
    assert "Exit timeout expired" not in log.read_text()


def test_model_that_fails_to_load_is_reported_and_leaves_no_process(
    light_home: Callable[[], Tllm],
) -> None:
    tllm = light_home()
    config = tllm.home / "models" / "demo" / "tensorrt_llm" / "config.pbtxt"
    config.write_text(re.sub(r"/engines/demo-\w+", "/engines/gone", config.read_text()))
    result = tllm.start()
    assert result.returncode == 3
    assert "tensorrt_llm: " in result.stderr and "engines/gone" in result.stderr
    assert "server.log" in result.stderr
    assert not any(str(tllm.home) in command_of(each) for each in psutil.process_iter())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_foreground_server_stops_on_a_signal(
    light_home: Callable[[], Tllm], number: signal.Signals, code: int
) -> None:
    tllm = light_home()
    ports = free_ports(3)
    command = (TLLM, "start", "--foreground", *port_options(ports))
    with subprocess.Popen(command, env=tllm.environ, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any("Ctrl-C stops the server." in line for line in lines)
        everything = processes_of(tllm)
        process.send_signal(number)
        assert process.wait(120) == code
    assert_nothing_is_left(tllm, ports[0], everything)
    assert servers_of(tllm) == []


def test_killed_triton_is_restarted(light_home: Callable[[], Tllm]) -> None:
    tllm = light_home()
    assert tllm.start().returncode == 0
    endpoint, before = tllm.endpoint(), processes_of(tllm)
    psutil.Process(tllm.status()["server_pid"]).kill()
    wait_until(lambda: tllm.is_back(1), 180)
    assert answers(endpoint)
    # All processes that the killed Triton had started have ended. The reaper guards the next one.
    left = wait_until_dead(before[1:], 0)
    assert [each for each in left if "reaper.py" not in command_of(each)] == []
    everything = processes_of(tllm)
    tllm.done("stop")
    assert_nothing_is_left(tllm, port_of(endpoint), everything)


def load_until_the_end(tllm: Tllm) -> None:
    """Let `tensorrt_llm` load only after the server begins to drain."""
    model = tllm.home / "models" / "demo" / "tensorrt_llm" / "1" / "model.py"
    model.write_text(f"{WAIT_FOR_THE_END}\n{model.read_text()}")


def test_start_that_times_out_leaves_no_process(light_home: Callable[[], Tllm]) -> None:
    tllm, ports = light_home(), free_ports(3)
    load_until_the_end(tllm)
    result = tllm("start", "--timeout", "1", *port_options(ports))
    assert (result.returncode, "the server was not ready after 1 s" in result.stderr) == (3, True)
    assert_nothing_is_left(tllm, ports[0])
    (server,) = servers_of(tllm)
    assert (server["state"], server["why"][0]) == ("failed", "the server was not ready after 1 s")


def test_port_bound_during_the_start_is_reported_with_its_process(
    light_home: Callable[[], Tllm],
) -> None:
    tllm, ports = light_home(), free_ports(3)
    with (
        socket.socket() as other_process,
        subprocess.Popen(
            (TLLM, "start", *port_options(ports)),
            env=tllm.environ, stderr=subprocess.PIPE, text=True,
        ) as starting,
    ):  # fmt: skip
        # The plan is written after the check of ports, and Triton binds them after it loads models.
        wait_until((tllm.home / "servers" / str(ports[0]) / "plan.json").exists)
        other_process.bind(("127.0.0.1", ports[1]))
        other_process.listen()
        _, output = starting.communicate(timeout=120)
        assert f"The gRPC port {ports[1]} is in use." in output
        assert f"(pid {psutil.Process().pid}) is listening on this port" in output
    assert starting.returncode == 3
    assert_nothing_is_left(tllm, ports[0])
    assert [server["state"] for server in servers_of(tllm)] == ["failed"]


def test_one_of_two_concurrent_starts_on_the_same_ports_succeeds(
    light_home: Callable[[], Tllm],
) -> None:
    tllm, ports = light_home(), free_ports(3)
    with ThreadPoolExecutor(2) as both:
        starts = [both.submit(tllm, "start", *port_options(ports)) for _ in range(2)]
        results = sorted((each.result() for each in starts), key=lambda each: each.returncode)
    assert [each.returncode for each in results] == [0, 3]
    # The Triton of the other start may listen already, first on its gRPC port.
    refusals = [f"The {what} port {port} is in use." for what, port in
                zip(("HTTP", "gRPC", "metrics"), ports, strict=True)]  # fmt: skip
    refusals.append(f"A server with HTTP port {ports[0]} already exists.")
    assert any(each in results[1].stderr for each in refusals), results[1].stderr
    assert [server["state"] for server in servers_of(tllm)] == ["ready"]
    everything = processes_of(tllm)
    tllm.done("stop")
    assert_nothing_is_left(tllm, ports[0], everything)


def test_concurrent_starts_on_different_ports_succeed(light_home: Callable[[], Tllm]) -> None:
    tllm, ports = light_home(), free_ports(6)
    with ThreadPoolExecutor(2) as both:
        starts = [
            both.submit(tllm, "start", *port_options(each)) for each in (ports[:3], ports[3:])
        ]
        assert [each.result().returncode for each in starts] == [0, 0]
    assert [server["state"] for server in servers_of(tllm)] == ["ready", "ready"]
    tllm.done("stop", "--all")
    for port in (ports[0], ports[3]):
        assert_nothing_is_left(tllm, port)
    assert servers_of(tllm) == []


def test_server_is_stopped_while_it_loads(light_home: Callable[[], Tllm]) -> None:
    tllm, ports = light_home(), free_ports(3)
    load_until_the_end(tllm)
    with subprocess.Popen(
        (TLLM, "start", *port_options(ports)), env=tllm.environ, stderr=subprocess.PIPE, text=True
    ) as starting:
        log = tllm.home / "servers" / str(ports[0]) / "server.log"
        wait_until(lambda: log.exists() and "loading: tensorrt_llm:1" in log.read_text())
        everything = processes_of(tllm)
        tllm.done("stop")
        _, output = starting.communicate(timeout=180)
    assert (starting.returncode, "was stopped before it was ready" in output) == (3, True)
    assert_nothing_is_left(tllm, ports[0], everything)
    assert servers_of(tllm) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Provide a function that mounts a file system of 1 MB on a folder until the test ends."""
    mounted: list[Path] = []

    def mount(folder: Path) -> None:
        folder.mkdir(parents=True)
        command = ("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"cannot mount a file system here: {done.stderr.strip()}")
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(("umount", "-l", str(folder)), check=True)


def test_full_disk_does_not_stop_the_server(
    light_home: Callable[[], Tllm], small_disk: Callable[[Path], None]
) -> None:
    tllm, ports = light_home(), free_ports(3)
    folder = tllm.home / "servers" / str(ports[0])
    small_disk(folder)
    assert tllm("start", *port_options(ports)).returncode == 0
    endpoint = tllm.endpoint()
    fill(folder / "filling")
    assert answers(endpoint)
    find_process(tllm, "tllm_runtime.worker").kill()
    wait_until(lambda: answers(endpoint), 180)
    psutil.Process(tllm.status()["server_pid"]).kill()
    wait_until(lambda: tllm.is_back(1), 180)
    assert answers(endpoint)
    everything = processes_of(tllm)
    tllm.done("stop")
    assert_nothing_is_left(tllm, ports[0], everything)
    assert servers_of(tllm) == []


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 512)


def test_build_accepts_a_copy_of_the_engine(imported: Tllm, source: str) -> None:
    engine = imported.engine("demo")
    copy = imported.home / "engines" / "aside"
    shutil.copytree(engine, copy)
    try:
        built = imported("build", "-m", "demo", "-s", source, "--engine-dir", str(copy))
        assert "Using the existing engine" in built.stderr
    finally:
        shutil.rmtree(copy)
