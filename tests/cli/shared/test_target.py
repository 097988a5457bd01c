"""Servers and models that `-m` and `-u` select."""

from __future__ import annotations

import dataclasses
import socket
import threading
from pathlib import Path

import pytest

from tests.samples.builds import ENGINE
from tests.samples.launch_plans import fake_plan
from trtllm_serve_cli.cli.shared.target import (
    CORE_MODEL,
    BenchTarget,
    find_bench_target,
    find_metrics,
    find_target,
    parse_url,
)
from trtllm_serve_cli.client.endpoint import Endpoint, Tls
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput, NoServer
from trtllm_serve_cli.launch.server_state import PLAN_FILE, describe_supervisor, write_state
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository.model.render import write_repository
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository
from trtllm_serve_cli.runtime.embedding_settings import EmbeddingSettings


@pytest.fixture
def endpoint(home: Home) -> Endpoint:
    """Record a running server whose imported model has another name than its Triton models."""
    loading = ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble")
    plan = dataclasses.replace(
        fake_plan(home.servers), models=("repo",), text_models=("ensemble",), loading=loading
    )
    plan.directory.mkdir(parents=True)
    (plan.directory / PLAN_FILE).write_text(plan.to_json())
    write_state(plan.directory, describe_supervisor("ready"))
    return plan.endpoint


@pytest.mark.parametrize("port", ["http", "grpc", "metrics"])
def test_metrics_are_found_by_any_address_of_a_started_server(
    endpoint: Endpoint, port: str
) -> None:
    address = getattr(endpoint, port)
    local = address.replace("127.0.0.1", "localhost")
    assert find_metrics([address, local], None)[0] == endpoint.metrics
    assert find_metrics(["gpu1:8000"], None) == ("gpu1:8000",)


@pytest.mark.parametrize("model", ["ensemble", "repo", None])
def test_text_model_is_found_by_its_name_and_by_that_of_the_imported_model(
    endpoint: Endpoint, model: str | None
) -> None:
    found = find_target(None, "grpc", model, None)
    assert (found.endpoint, found.model) == (endpoint, "ensemble")


@pytest.mark.parametrize(
    ("model", "text_model", "expected"),
    [
        ("ensemble", "ensemble", "ensemble"),
        ("repo", "own", "ensemble"),
        ("tensorrt_llm", None, "tensorrt_llm"),
        ("repo", None, "tensorrt_llm"),
    ],
)
@pytest.mark.parametrize("has_url", [False, True])
def test_benchmark_finds_triton_models_by_their_names(
    endpoint: Endpoint, has_url: bool, model: str, text_model: str | None, expected: str
) -> None:
    url = endpoint.grpc.replace("127.0.0.1", "localhost") if has_url else None
    assert find_bench_target(url, "grpc", model, text_model) == BenchTarget(
        endpoint.grpc, expected, endpoint.metrics, "repo" if model == "repo" else None
    )


def test_benchmark_uses_the_certificate_of_a_running_server(home: Home, endpoint: Endpoint) -> None:
    (folder,) = home.servers.iterdir()
    plan = (folder / PLAN_FILE).read_text()
    tls = '"tls": {"root_certificates": "ca.pem"}'
    (folder / PLAN_FILE).write_text(plan.replace('"tls": null', tls))
    for url in (None, endpoint.grpc, f"grpcs://{endpoint.grpc}"):
        assert find_bench_target(url, "grpc", "repo").tls == Tls("ca.pem")
    assert find_bench_target(None, "http", "repo") == BenchTarget(
        endpoint.http, CORE_MODEL, endpoint.metrics, "repo"
    )


def test_scheme_of_the_address_selects_tls(home: Home) -> None:
    url, ca = "grpcs://llm.example.com:8001", Path("/ca.pem")
    tls = Tls("/ca.pem")
    expected = BenchTarget("llm.example.com:8001", CORE_MODEL, tls=tls)
    assert find_bench_target(url, "grpc", None, tls_ca=ca) == expected
    assert find_bench_target(url, "grpc", None).tls == Tls(None)
    endpoint = find_target(url, "http", None, None, ca).endpoint
    assert endpoint == Endpoint(grpc="llm.example.com:8001", tls=tls)
    with pytest.raises(BadInput, match="cannot send HTTP requests to grpcs://"):
        find_bench_target(url, "http", None)
    with pytest.raises(BadInput, match="--tls-ca requires"):
        find_bench_target("llm.example.com:8001", "grpc", None, tls_ca=ca)


def test_name_of_no_model_is_refused(endpoint: Endpoint) -> None:
    with pytest.raises(NoServer, match="No server is running for tensorrt_llm_bls"):
        find_target(None, "grpc", "tensorrt_llm_bls", None)


@pytest.mark.parametrize("model", ["repo", None])
def test_embedding_models_are_not_benchmarked(
    home: Home, endpoint: Endpoint, model: str | None
) -> None:
    engine = dataclasses.replace(ENGINE, embedding=EmbeddingSettings(8))
    plan = plan_repository("repo", engine, ServingOptions(layout="embedding"))
    write_repository(plan, home.models / "repo")
    with pytest.raises(BadInput, match="repo cannot be benchmarked"):
        find_bench_target(None, "grpc", model)


def test_benchmark_is_refused_at_the_port_of_the_other_interface(home: Home) -> None:
    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(100)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(BadInput) as raised:
            find_bench_target(f"http://{address}", "grpc", None)
        thread.join()
    assert raised.value.what == f"{address} serves HTTP, not gRPC."
    assert raised.value.next_step == "pass -i http, or pass the server's gRPC port with -u"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("localhost:8000", "127.0.0.1:8000"),
        ("http://LOCALHOST:8000/v2", "127.0.0.1:8000"),
        ("mylocalhost:8000", "mylocalhost:8000"),
        ("localhost.example.com:8000", "localhost.example.com:8000"),
    ],
)
def test_only_the_host_localhost_is_replaced(url: str, address: str) -> None:
    assert parse_url(url) == address
