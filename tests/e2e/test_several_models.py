"""Servers with two models, and with two instances of one model."""

from __future__ import annotations

import dataclasses
import http.client
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.e2e.conftest import Tllm, homes_with, simulated
from tests.e2e.upstream import Stop, stop_text_inputs, text_inputs
from tests.e2e.upstream import stream as stream_like_upstream
from tests.ports import free_ports
from tests.waiting import wait_until
from trtllm_serve_cli.client.ask import generate, stream
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.client.transport.cancellation import Cancellation
from trtllm_serve_cli.errors import RequestFailed, TllmError
from trtllm_serve_cli.metrics.fetch import fetch_metrics
from trtllm_serve_cli.metrics.parse import parse_metrics

# The simulated engine repeats tokens of the prompt.
QUESTION = GenerateRequest(" Paris Paris", max_tokens=5)
MODELS = [f"{name}{suffix}" for name in ("one", "two")
          for suffix in ("", "_ensemble", "_tensorrt_llm_bls")]  # fmt: skip


@pytest.fixture(scope="module")
def two(light: Tllm, source: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tllm]:
    """Serve a simulated engine under two names."""
    folder = tmp_path_factory.mktemp("several")
    tllm, options = light.with_own_home(folder / "home"), simulated(source, folder)
    for name in ("one", "two"):
        tllm.done("import", "-m", name, *options)
    started = tllm.start("-m", "one", "-m", "two")
    assert started.returncode == 0, started.stdout + started.stderr
    yield tllm
    tllm("stop", "--all")


@pytest.fixture(scope="module")
def endpoint(two: Tllm) -> Endpoint:
    return two.endpoint()


def test_both_models_respond_concurrently_under_every_name(endpoint: Endpoint) -> None:
    requests = [(model, interface) for model in MODELS for interface in ("grpc", "http")]
    with ThreadPoolExecutor(len(requests)) as threads:
        answers = threads.map(lambda each: generate(endpoint, each[0], QUESTION, each[1]), requests)
        assert {"Paris" in answer.texts[0] for answer in answers} == {True}


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls", "one_one"])
def test_names_without_a_prefix_do_not_exist(endpoint: Endpoint, model: str) -> None:
    with pytest.raises(RequestFailed, match=f"model named '{model}'"):
        generate(endpoint, model, QUESTION)


def num_active(endpoint: Endpoint, model: str = "tensorrt_llm", **labels: str) -> float | None:
    page = parse_metrics(fetch_metrics(endpoint.metrics), 0.0)
    labels = {"request_type": "active", "model": model, **labels}
    return page.value("nv_trt_llm_request_metrics", **labels)


def num_steps(endpoint: Endpoint, model: str) -> float:
    page = parse_metrics(fetch_metrics(endpoint.metrics), 0.0)
    labels = {"general_type": "iteration_counter", "model": model}
    return page.value("nv_trt_llm_general_metrics", **labels) or 0.0


def test_cancelled_request_frees_its_models_slot(endpoint: Endpoint) -> None:
    long = GenerateRequest("Count to a million:", max_tokens=6000, min_tokens=6000)
    cancellation = Cancellation()

    def send_long() -> None:
        with pytest.raises(TllmError):
            generate(endpoint, "two_ensemble", long, "grpc", 60.0, cancellation)

    with ThreadPoolExecutor(1) as threads:
        sent = threads.submit(send_long)
        wait_until(lambda: num_active(endpoint, "two_tensorrt_llm") == 1)
        assert num_active(endpoint, "one_tensorrt_llm") == 0
        cancellation.set()
        sent.result(60)
    wait_until(lambda: num_active(endpoint, "two_tensorrt_llm") == 0)


def test_status_shows_both_models_and_their_workers(two: Tllm) -> None:
    status = two.status()
    assert (status["state"], status["models"]) == ("ready", ["one", "two"])
    parts = {f"engine worker of {name}_tensorrt_llm" for name in ("one", "two")}
    assert parts <= set(status["memory_bytes"])


def worker_of(tllm: Tllm, model: str) -> psutil.Process:
    supervisor = psutil.Process(tllm.status()["supervisor_pid"])
    return next(
        each
        for each in supervisor.children(recursive=True)
        if "tllm_runtime.worker" in each.cmdline()
        and f"/{model}/" in " ".join(each.parent().cmdline())
    )


def test_killed_worker_fails_only_its_own_requests(two: Tllm, endpoint: Endpoint) -> None:
    """Under load, requests of the other model continue, and the worker is restarted."""
    long = GenerateRequest("Continue", max_tokens=6000, min_tokens=6000)
    worker = worker_of(two, "one_tensorrt_llm")

    def fail() -> None:
        with pytest.raises(RequestFailed, match="engine worker died"):
            generate(endpoint, "one", long, timeout_s=60.0)

    continuing = stream(endpoint, "two", long)
    next(continuing)
    with ThreadPoolExecutor(4) as threads:
        failing = [threads.submit(fail) for _ in range(4)]
        wait_until(lambda: num_active(endpoint, "one_tensorrt_llm") == 4)
        wait_until(lambda: num_active(endpoint, "two_tensorrt_llm") == 1)
        worker.kill()
        for each in failing:
            each.result(60)
    steps = num_steps(endpoint, "two_tensorrt_llm")
    wait_until(lambda: num_steps(endpoint, "two_tensorrt_llm") > steps + 100)
    assert next(continuing).text
    assert num_active(endpoint, "two_tensorrt_llm") == 1
    continuing.close()

    def is_back() -> bool:
        try:
            return bool(generate(endpoint, "one", QUESTION).texts)
        except RequestFailed:
            return False

    wait_until(is_back, 180)
    # The supervisor can report the worker as unresponsive until its next check.
    wait_until(lambda: two.state().phase == "ready")
    assert two.state().restarts == 0


def test_bench_uses_the_requested_model(two: Tllm, endpoint: Endpoint) -> None:
    words = ("bench", "token-norm-dist", "-m", "two", "--num-requests", "4", "--json")
    result = json.loads(two.done(*words))
    assert result["summary"]["num_completed"] == 4
    assert [each["name"] for each in result["targets"]] == ["two_tensorrt_llm"]


def test_infer_uses_the_requested_model(two: Tllm) -> None:
    assert "Paris" in two.done("infer", QUESTION.text_input, "-m", "two", "--raw")
    assert two("infer", "Hello").returncode == 3


def test_single_model_has_names_without_a_prefix(two: Tllm, endpoint: Endpoint) -> None:
    """This test replaces the server of both models with another server."""
    two.done("stop")
    assert two.start("-m", "two").returncode == 0
    assert "Paris" in generate(two.endpoint(), "ensemble", QUESTION).texts[0]
    assert not Path(two.status()["repository"]).is_relative_to(two.home / "servers")


@pytest.fixture(scope="module", params=["false", "true"])
def instances(
    light_model: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Tllm]:
    """Serve two instances of `tensorrt_llm`, with an engine each or with a shared one."""
    with homes_with(light_model, tmp_path_factory.mktemp("instances")) as make:
        tllm = make()
        tllm.done(
            "set", "demo", "tensorrt_llm_instance_count=2", "bls_instance_count=2",
            f"instances_share_engine={request.param}",
        )  # fmt: skip
        assert tllm.start("--openai", f"--openai-port={free_ports(1)[0]}").returncode == 0
        yield tllm


def engines_of(endpoint: Endpoint) -> set[str]:
    """Return the engines of `tensorrt_llm`. A single engine has no name."""
    return set(re.findall(r'instance="([^"]*)"', fetch_metrics(endpoint.metrics)))


def test_stops_and_cancellations_reach_the_instance_that_runs_the_request(instances: Tllm) -> None:
    """The stop of some requests arrives at another instance than the one that runs them."""
    endpoint, cancellation = instances.endpoint(), Cancellation()
    long = GenerateRequest("Count to a million:", max_tokens=6000, min_tokens=6000)
    # Long enough for all requests to be active at the same time.
    stopped = dataclasses.replace(long, stop_after_ms=5_000)

    def cancelled(_: int) -> None:
        with pytest.raises(TllmError):
            generate(endpoint, "demo", long, "grpc", 60.0, cancellation)

    with ThreadPoolExecutor(12) as threads:
        texts = [threads.submit(cancelled, number) for number in range(6)]
        texts += [threads.submit(generate, endpoint, "demo", stopped) for _ in range(6)]
        wait_until(lambda: num_active(endpoint) == 12)
        cancellation.set()
        for each in texts:
            each.result(120)
    wait_until(lambda: num_active(endpoint) == 0)
    inputs = text_inputs([long.text_input], 6000, streaming=True)
    inputs["min_tokens"] = np.array([[6000]], np.int32)
    for _ in range(4):
        stop = Stop(stop_text_inputs())
        results = stream_like_upstream(endpoint, "demo", inputs, request_id="1", stop=stop)
        failures = [str(each) for each in results if isinstance(each, Exception)]
        assert (failures, 1 < len(results) < 6000) == ([], True)
    wait_until(lambda: num_active(endpoint) == 0)


def test_gateway_distributes_requests_over_the_engines(
    instances: Tllm, request: pytest.FixtureRequest
) -> None:
    """Each instance has an engine, or both share one. The gateway does not need Triton."""
    endpoint = instances.endpoint()
    engines = engines_of(endpoint)
    shares = request.node.callspec.params["instances"] == "true"
    assert engines == (set() if shares else {"tensorrt_llm_0_0", "tensorrt_llm_0_1"})
    num_before = num_requests(endpoint)
    gateway = instances.status()["openai"].removeprefix("http://").removesuffix("/v1")
    body = {"model": "demo", "prompt": "Count to a million:", "max_tokens": 6000, "stream": True}
    with ExitStack() as streams:
        for _ in range(4):
            connection = streams.enter_context(closing(http.client.HTTPConnection(gateway)))
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            response = streams.enter_context(connection.getresponse())
            assert response.read(5) == b"data:"
        wait_until(lambda: num_active(endpoint) == 4)
        assert [num_active(endpoint, instance=each) for each in engines] == [2.0] * len(engines)
    wait_until(lambda: num_active(endpoint) == 0)
    assert num_requests(endpoint) == num_before


def num_requests(endpoint: Endpoint) -> float | None:
    """Return the number of requests that Triton has sent to `tensorrt_llm`."""
    page = parse_metrics(fetch_metrics(endpoint.metrics), 0.0)
    return page.value("nv_inference_count", model="tensorrt_llm")
