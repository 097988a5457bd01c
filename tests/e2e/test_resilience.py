"""What dies is said to be dead, and comes back."""

from __future__ import annotations

import re
import shutil
import signal
import threading
from collections.abc import Callable

import psutil
import pytest

from tests.e2e.conftest import Tllm
from tests.waiting import wait_until
from trtllm_serve_cli.client import Endpoint, GenerateRequest, generate, probe_token, stream
from trtllm_serve_cli.errors import RequestFailed, TllmError
from trtllm_serve_cli.metrics import fetch_metrics, parse_metrics

pytestmark = pytest.mark.e2e


def processes_of(tllm: Tllm) -> list[psutil.Process]:
    """The server's supervisor and everything below it."""
    supervisor = psutil.Process(tllm.status()["supervisor_pid"])
    return [supervisor, *supervisor.children(recursive=True)]


def find_process(tllm: Tllm, word: str) -> psutil.Process:
    return next(each for each in processes_of(tllm) if word in " ".join(each.cmdline()))


def answers(endpoint: Endpoint) -> bool:
    try:
        probe_token(endpoint, "demo", 20)
    except TllmError:
        return False
    return True


def test_a_dead_worker_fails_its_requests_and_is_restarted(
    served: Tllm, endpoint: Endpoint
) -> None:
    pieces = stream(endpoint, "demo", GenerateRequest("Tell me", max_tokens=4000, min_tokens=4000))
    next(pieces)
    find_process(served, "tllm_runtime.worker").send_signal(signal.SIGKILL)
    with pytest.raises(RequestFailed, match="engine worker died"):
        list(pieces)
    wait_until(lambda: answers(endpoint), 30)
    snapshot = parse_metrics(fetch_metrics(endpoint.metrics), 0.0)
    assert (snapshot.value("tllm_engine_worker_restarts") or 0) >= 1


def test_a_server_that_lost_a_models_process_is_restarted(served: Tllm, endpoint: Endpoint) -> None:
    find_process(served, "/tensorrt_llm_bls/1/model.py").send_signal(signal.SIGKILL)
    wait_until(lambda: served.status()["restarts"] == 1, 20)
    wait_until(lambda: served.status()["state"] == "ready", 60)
    assert answers(endpoint)


def test_nothing_outlives_a_killed_supervisor(fresh_home: Callable[[], Tllm]) -> None:
    tllm = fresh_home()
    assert tllm.start().returncode == 0
    everything = processes_of(tllm)
    everything[0].send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(everything, timeout=15)
    assert alive == []
    result = tllm("infer", "hi")
    assert result.returncode == 3 and "is not running any more" in result.stderr


def test_stop_leaves_no_process(fresh_home: Callable[[], Tllm]) -> None:
    tllm = fresh_home()
    assert tllm.start().returncode == 0
    everything = processes_of(tllm)
    tllm.done("stop")
    _, alive = psutil.wait_procs(everything, timeout=5)
    assert (alive, tllm.done("status", "--json").split()) == ([], ["{", '"servers":', "[]", "}"])


def test_requests_that_failed_do_not_hold_up_a_stop(fresh_home: Callable[[], Tllm]) -> None:
    tllm = fresh_home()
    assert tllm.start().returncode == 0
    endpoint = tllm.endpoint()
    # Of those that are cancelled at the wrong moment, one in twenty.
    for _ in range(200):
        with pytest.raises(RequestFailed, match="ask for at least 1"):
            generate(endpoint, "demo", GenerateRequest("hi", max_tokens=0), "grpc")
    tllm.done("stop")
    (log,) = (tllm.home / "servers").glob("*/server.log")
    assert "Exit timeout expired" not in log.read_text()


def test_a_model_that_cannot_load_is_explained_and_leaves_nothing(
    fresh_home: Callable[[], Tllm],
) -> None:
    tllm = fresh_home()
    config = tllm.home / "models" / "demo" / "tensorrt_llm" / "config.pbtxt"
    config.write_text(re.sub(r"/engines/demo-\w+", "/engines/gone", config.read_text()))
    result = tllm.start()
    assert result.returncode == 3
    assert "tensorrt_llm: " in result.stderr and "engines/gone" in result.stderr
    assert "server.log" in result.stderr
    assert not any(str(tllm.home) in " ".join(_command(each)) for each in psutil.process_iter())


def test_the_foreground_server_stops_with_its_terminal(fresh_home: Callable[[], Tllm]) -> None:
    import subprocess

    from tests.e2e.conftest import TLLM
    from tests.ports import free_ports

    tllm = fresh_home()
    http, grpc, metrics = free_ports(3)
    command = (TLLM, "start", "--foreground", f"--http-port={http}", f"--grpc-port={grpc}",
               f"--metrics-port={metrics}")  # fmt: skip
    with subprocess.Popen(command, env=tllm.environ, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        ready = threading.Event()

        def read() -> None:
            for line in process.stderr:  # type: ignore[union-attr]
                if "Ready on" in line:
                    ready.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert ready.wait(60)
        everything = processes_of(tllm)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        reader.join()
    assert psutil.wait_procs(everything, timeout=10)[1] == []


def test_a_repository_without_its_engine_stays_importable(imported: Tllm, tmp_path: object) -> None:
    engine = imported.engine("demo")
    copy = imported.home / "engines" / "aside"
    shutil.copytree(engine, copy)
    try:
        assert "Engine:" in imported("build", "-m", "demo", "--engine-dir", str(copy)).stderr
    finally:
        shutil.rmtree(copy)


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []
