"""Processes of a server that hang under load are reported and restarted."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.e2e.alive import answers, find_process
from tests.e2e.conftest import Tllm, homes_with, without_models
from tests.ports import free_ports
from tests.waiting import is_gone, wait_until
from trtllm_serve_cli.client.ask import generate
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.errors import TllmError
from trtllm_serve_cli.gateway.generation.worker_socket import find_worker_socket
from trtllm_serve_cli.launch.supervisor.hangs import grpc_liveness
from trtllm_serve_cli.metrics.fetch import fetch_metrics
from trtllm_serve_cli.metrics.parse import parse_metrics
from trtllm_serve_cli.runtime.engine import GenerationRequest
from trtllm_serve_cli.runtime.worker.protocol import encode_frame

# Makes the engine's steps wait while this file exists in the model's folder.
STEP = "    def step(self) -> list[SequenceUpdate]:\n"
WAIT = """        import time
        while Path("{marker}").exists():
            time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def tllm(light: Tllm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tllm]:
    """Serve an engine whose steps can wait, and restart processes that hang for 8 s."""
    folder = tmp_path_factory.mktemp("hangs")
    repository = without_models(light, folder, ["tensorrt_llm_bls"])
    with homes_with(repository, folder) as make:
        tllm = make()
        engine = tllm.home.joinpath(
            "models", "demo", "tensorrt_llm", "1", "tllm_runtime", "engines", "sim", "engine.py"
        )
        text = engine.read_text()
        assert STEP in text
        engine.write_text(text.replace(STEP, STEP + WAIT.format(marker=marker_of(tllm.home))))
        (port,) = free_ports(1)
        started = tllm.start("--openai", f"--openai-port={port}", "--hang-timeout=8")
        assert started.returncode == 0, started.stdout + started.stderr
        yield tllm


@pytest.fixture(scope="module")
def hanging_endpoint(tllm: Tllm) -> Endpoint:
    return tllm.endpoint()


def marker_of(home: Path) -> Path:
    return home / "steps-wait"


def gateway_of(tllm: Tllm) -> str:
    plan = json.loads(next((tllm.home / "servers").glob("*/plan.json")).read_text())
    return f"http://127.0.0.1:{plan['gateway']['port']}"


def health_of(tllm: Tllm) -> tuple[int, str]:
    """Return the status and the message of `/health`; 0 if the gateway does not respond."""
    try:
        with urllib.request.urlopen(f"{gateway_of(tllm)}/health", timeout=2) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]["message"]
    except OSError:
        return 0, ""


def published_state(endpoint: Endpoint) -> tuple[float | None, float | None]:
    """Return whether the server is ready, and its hangs, from Triton's metrics page."""
    page = parse_metrics(fetch_metrics(endpoint.metrics, 60.0), 0.0)
    return page.value("tllm_server_ready"), page.value("tllm_server_hangs_total")


@contextmanager
def loaded(tllm: Tllm) -> Iterator[None]:
    """Send requests to Triton and to the gateway from four threads. Assert that each one ends."""
    is_over = threading.Event()
    endpoint, gateway = tllm.endpoint(), gateway_of(tllm)

    def ask_triton() -> None:
        generate(endpoint, "demo", GenerateRequest("go", max_tokens=64), "grpc")

    def ask_gateway() -> None:
        body = json.dumps({"model": "demo", "prompt": "go", "max_tokens": 64}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{gateway}/v1/completions", body, headers)
        urllib.request.urlopen(request, timeout=120).read()

    def send(ask: Callable[[], None]) -> None:
        while not is_over.is_set():
            try:
                ask()
            except (TllmError, OSError, http.client.HTTPException):
                is_over.wait(0.1)

    asking = (ask_triton, ask_triton, ask_gateway, ask_gateway)
    threads = [threading.Thread(target=send, args=(each,)) for each in asking]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize(
    ("words", "what", "restarts"),
    [
        ("tllm_runtime.worker", "the engine worker of tensorrt_llm (process {}) has", 0),
        ("--model-repository", "Triton has not responded", 1),
        ("/tensorrt_llm/1/model.py", "the process of model tensorrt_llm (process {}) has", 1),
        ("trtllm_serve_cli.gateway", "the OpenAI-compatible gateway (process {}) has", 0),
    ],
    ids=["worker", "Triton", "tensorrt_llm", "gateway"],
)
def test_stopped_process_is_reported_and_restarted(
    tllm: Tllm, hanging_endpoint: Endpoint, words: str, what: str, restarts: int
) -> None:
    before = tllm.state()
    victim = find_process(tllm, words)
    with loaded(tllm):
        victim.send_signal(signal.SIGSTOP)
        start = what.format(victim.pid)
        wait_until(lambda: any(line.startswith(start) for line in tllm.state().why), 60)
        assert tllm.status()["state"] == "unresponsive"
        assert health_of(tllm)[0] in (503, 0)
        wait_until(lambda: is_gone(victim.pid), 60)
        wait_until(lambda: tllm.is_back(before.restarts + restarts), 180)
        wait_until(lambda: health_of(tllm)[0] == 200, 60)
    assert answers(hanging_endpoint)
    assert tllm.state().hangs > before.hangs
    wait_until(lambda: published_state(hanging_endpoint) == (1, tllm.state().hangs), 60)


def test_stopped_processes_of_text_models_are_reported_and_restarted(
    tllm: Tllm, hanging_endpoint: Endpoint
) -> None:
    before = tllm.state()
    names = ("preprocessing", "postprocessing", "demo")
    victims = [find_process(tllm, f"/{name}/1/model.py") for name in names]
    expected = {
        f"the process of model {name} (process {victim.pid}) has not responded"
        for name, victim in zip(names, victims, strict=True)
    }
    with loaded(tllm):
        for victim in victims:
            victim.send_signal(signal.SIGSTOP)
        wait_until(lambda: expected <= {each.partition(" for ")[0] for each in tllm.state().why})
        wait_until(lambda: tllm.is_back(before.restarts + 1), 180)
    assert all(is_gone(victim.pid) for victim in victims)
    assert answers(hanging_endpoint)


def test_grpc_port_responds_to_the_supervisors_request(hanging_endpoint: Endpoint) -> None:
    with socket.create_connection(hanging_endpoint.grpc.split(":"), 60) as connection:
        connection.sendall(grpc_liveness.make_request(hanging_endpoint.grpc, "http"))
        assert grpc_liveness.read_response(connection)


def test_step_that_never_returns_is_reported_and_the_worker_restarted(
    tllm: Tllm, hanging_endpoint: Endpoint
) -> None:
    before, marker = tllm.state(), marker_of(tllm.home)
    with loaded(tllm):
        marker.touch()
        wait_until(lambda: tllm.state().phase == "unresponsive", 60)
        assert "has not completed a step" in tllm.state().why[0]
        code, message = health_of(tllm)
        assert (code, "has not completed a step" in message) == (503, True)
        result = tllm("infer", "hi")
        marker.unlink()
        wait_until(lambda: tllm.is_back(before.restarts), 180)
    assert (result.returncode, "engine worker" in result.stderr) == (3, True)
    assert tllm.state().hangs == before.hangs + 1
    report = next((tllm.home / "servers").glob("*/hang-report.txt")).read_text()
    assert "engine.py" in report and "in step" in report
    assert answers(hanging_endpoint)


def test_long_load_and_a_client_that_never_reads_are_not_hangs(
    tllm: Tllm, hanging_endpoint: Endpoint
) -> None:
    (directory,) = (tllm.home / "servers").iterdir()
    name = find_worker_socket(directory, "tensorrt_llm")
    before = tllm.state()
    with loaded(tllm), socket.socket(socket.AF_UNIX) as client:
        client.connect(f"\0{name}")
        for number in range(1, 33):
            request = GenerationRequest(number, (1, 2, 3), 200, min_tokens=200)
            client.sendall(encode_frame({"do": "submit", "request": request.to_message()}))
        for _ in range(50):
            assert answers(hanging_endpoint)
    # A process that was slow on a busy machine may still be reported.
    wait_until(lambda: tllm.state().phase == "ready")
    after = tllm.state()
    assert (after.hangs, after.restarts) == (before.hangs, before.restarts)


def test_stopped_supervisor_is_reported(tllm: Tllm) -> None:
    supervisor = psutil.Process(tllm.state().supervisor_pid)
    supervisor.suspend()
    try:
        assert tllm.status()["state"] == "unresponsive"
    finally:
        supervisor.resume()
    assert tllm.status()["state"] == "ready"
