from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.gateway.fake_triton import Triton, serving_gateway, serving_triton
from tests.gateway.fakes import FakeBackend, LoadedRegistry, make_model
from tests.ports import free_ports
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.gateway.access.keys import add_key
from trtllm_serve_cli.gateway.app import build_app
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel
from trtllm_serve_cli.gateway.door.inference_body import SIZE_HEADER
from trtllm_serve_cli.gateway.door.kserve import check_json, find_servers, list_triton_models
from trtllm_serve_cli.gateway.errors import ApiError

GENERATE = "/v2/models/demo/generate"
INFER = "/v2/models/demo/infer"


@pytest.fixture
def client() -> Iterator[TestClient]:
    with serving_triton() as address, serving_gateway(address) as client:
        yield client


def test_request_is_passed_with_a_length_and_without_the_token(client: TestClient) -> None:
    headers = {"tllm-token": "secret", "content-type": "application/json", "x-other": "1"}
    parts = iter([b'{"text_input":', b'"a"}'])
    answer = client.post(GENERATE, content=parts, headers=headers).json()
    assert (answer["method"], answer["path"], answer["size"]) == ("POST", GENERATE, 18)
    assert answer["headers"]["content-length"] == "18"
    assert not {"tllm-token", "x-other", "transfer-encoding"} & answer["headers"].keys()


def test_responses_of_triton_are_not_compressed(client: TestClient) -> None:
    answer = client.post(GENERATE, json={}, headers={"accept-encoding": "gzip"}).json()
    assert answer["headers"]["accept-encoding"] == "identity"


def test_stream_is_passed(client: TestClient) -> None:
    response = client.post("/v2/models/ensemble/generate_stream", json={})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.startswith("data: ")


def test_status_of_a_stream_is_passed() -> None:
    class Failing(Triton):
        def do_POST(self) -> None:
            self.path = "/missing_stream"
            super().do_GET()

    with serving_triton(Failing) as address, serving_gateway(address) as client:
        response = client.post("/v2/models/demo/generate_stream", json={})
    assert (response.status_code, response.text[:6]) == (400, "data: ")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2", 200),
        ("GET", "/v2/health/ready", 200),
        ("GET", "/v2/models/demo", 200),
        ("GET", "/v2/models/tensorrt_llm/versions/1/ready", 200),
        ("GET", "/v2/models/preprocessing", 404),
        ("GET", "/v2/models/demo/generate", 405),
        ("POST", "/v2/repository/index", 404),
        ("POST", "/v2/repository/models/demo/unload", 404),
        ("POST", "/v2/systemsharedmemory/region/x/register", 404),
        ("GET", "/v2/trace/setting", 404),
        ("POST", "/v2/models/../repository/index", 404),
        ("POST", "/v2/models/a%2f..%2fb/infer", 404),
    ],
)
def test_only_inference_and_metadata_are_passed(
    client: TestClient, method: str, path: str, status: int
) -> None:
    response = client.request(method, path, json={} if method == "POST" else None)
    assert response.status_code == status
    assert status == 200 or isinstance(response.json()["error"], str)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b'{"a":' * 1_000 + b"1" + b"}" * 1_000, 413),
        (b"[" * 65 + b"]" * 65, 400),
        (b'"' + b"a" * 5000 + b'"', 413),
    ],
)
@pytest.mark.parametrize("is_chunked", [False, True])
def test_dangerous_bodies_are_rejected(
    client: TestClient, body: bytes, status: int, is_chunked: bool
) -> None:
    content: Any = iter([body]) if is_chunked else body
    response = client.post(GENERATE, content=content)
    assert (response.status_code, list(response.json())) == (status, ["error"])


def test_json_nested_a_million_deep_is_rejected() -> None:
    with pytest.raises(ApiError, match="nesting levels"):
        check_json(b"[" * 1_000_000)


def test_long_strings_are_rejected() -> None:
    with pytest.raises(ApiError, match="more than 1048576 characters"):
        check_json(json.dumps({"a": ["x" * ((1 << 20) + 1)]}).encode())


def test_binary_tensors_follow_the_json(client: TestClient) -> None:
    head = b'{"inputs":[]}'
    body = head + struct.pack("<i", 7)
    response = client.post(INFER, content=body, headers={SIZE_HEADER: str(len(head))})
    received = response.json()
    assert (received["size"], received["headers"][SIZE_HEADER]) == (len(body), str(len(head)))
    for length in ("99", "-1", "x"):
        response = client.post(INFER, content=body, headers={SIZE_HEADER: length})
        assert response.status_code == 400
        assert "header is invalid" in response.json()["error"]


def test_models_of_several_repositories() -> None:
    first = ServedModel("a", "a_a", Endpoint(http="one:1"))
    second = ServedModel("b", "b_ensemble", Endpoint(http="two:2"))
    assert find_servers("GET", "/v2/models/b_ensemble", (first, second)) == (second,)
    assert find_servers("GET", "/v2/health/ready", (first, second)) == (first, second)
    assert list_triton_models("b_ensemble") == {
        "b_ensemble",
        "b_tensorrt_llm",
        "b_tensorrt_llm_bls",
    }


@contextmanager
def serving_models(addresses: Mapping[str, str], keys: Path | None = None) -> Iterator[TestClient]:
    """Serve a gateway for models with these HTTP addresses, by model name."""
    served = tuple(
        ServedModel(name, name, Endpoint(http=address)) for name, address in addresses.items()
    )
    config = GatewayConfig(served, keys_file=None if keys is None else str(keys))
    models = (dataclasses.replace(make_model(FakeBackend()), name=name) for name in addresses)
    with TestClient(build_app(config, LoadedRegistry(config, *models))) as client:
        yield client


def test_key_cannot_use_another_model_of_the_same_name(tmp_path: Path) -> None:
    """Each repository has a `tensorrt_llm`, so the path alone does not determine the model."""
    keys = tmp_path / "keys.json"
    tokens = {name: add_key(keys, name, now_s=0.0, models=(name,)) for name in ("a", "b", "c")}

    def post(client: TestClient, name: str) -> Any:
        headers = {"authorization": f"Bearer {tokens[name]}"}
        return client.post("/v2/models/tensorrt_llm/infer", json={}, headers=headers)

    with (
        serving_triton() as one,
        serving_triton() as two,
        serving_models({"a": one, "b": two}, keys) as client,
    ):
        assert [post(client, "a").json()["address"] for _ in range(2)] == [one, one]
        assert [post(client, "b").json()["address"] for _ in range(2)] == [two, two]
        assert post(client, "c").status_code == 404


def test_key_cannot_use_the_adapters_of_its_model(tmp_path: Path) -> None:
    """A request may select an adapter in a binary tensor, which the gateway does not read."""
    keys = tmp_path / "keys.json"
    allowed: dict[str, tuple[str, ...]] = {"all": (), "both": ("demo", "poet"), "base": ("demo",)}
    tokens = [add_key(keys, name, now_s=0.0, models=each) for name, each in allowed.items()]
    model = make_model(FakeBackend())
    with serving_triton() as address:
        served = (ServedModel("demo", "demo", Endpoint(http=address)),)
        config = GatewayConfig(served, keys_file=str(keys))
        registry = LoadedRegistry(config, model, model.with_adapter("poet", lora_name="poet"))
        with TestClient(build_app(config, registry)) as client:
            headers = [{"authorization": f"Bearer {each}"} for each in tokens]
            answers = [client.post(GENERATE, json={}, headers=each) for each in headers]
    assert [each.status_code for each in answers] == [200, 200, 403]
    assert "does not allow all LoRA adapters of 'demo'" in answers[-1].json()["error"]


def test_limited_key_waits_until_the_adapters_of_its_model_are_known(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    allowed: dict[str, tuple[str, ...]] = {"all": (), "base": ("demo",)}
    tokens = [add_key(keys, name, now_s=0.0, models=each) for name, each in allowed.items()]
    with serving_triton() as address:
        served = (ServedModel("demo", "demo", Endpoint(http=address)),)
        config = GatewayConfig(served, keys_file=str(keys))
        with TestClient(build_app(config, LoadedRegistry(config))) as client:
            headers = [{"authorization": f"Bearer {each}"} for each in tokens]
            answers = [client.post(GENERATE, json={}, headers=each) for each in headers]
    assert [each.status_code for each in answers] == [200, 503]
    assert answers[-1].json()["error"].startswith("The model 'demo' is not ready")


def test_name_of_several_models_is_ambiguous() -> None:
    with serving_models(dict.fromkeys("ab", "127.0.0.1:1")) as client:
        response = client.post("/v2/models/tensorrt_llm/infer", json={})
    assert response.status_code == 400
    assert "belongs to several served models: a, b." in response.json()["error"]


def test_triton_that_does_not_answer() -> None:
    with serving_gateway("127.0.0.1:1") as client:
        response = client.get("/v2/models/demo/ready")
    assert (response.status_code, "retry-after" in response.headers) == (503, True)


@pytest.mark.parametrize("path", [GENERATE, "/v2/models/demo/generate_stream"])
def test_requests_go_to_the_servers_in_turn(path: str) -> None:
    with serving_triton() as one, serving_triton() as two, serving_gateway(one, two) as client:
        bodies = [client.post(path, json={}).text.removeprefix("data: ") for _ in range(4)]
    assert [json.loads(each)["address"] for each in bodies] == [one, two, one, two]


def test_server_that_refuses_the_connection_is_skipped() -> None:
    closed = f"127.0.0.1:{free_ports(1)[0]}"
    with serving_triton() as open_, serving_gateway(closed, open_) as client:
        answers = [client.post(GENERATE, json={}) for _ in range(4)]
        assert [each.json()["address"] for each in answers] == [open_] * 4


def test_model_is_ready_if_one_server_has_it() -> None:
    class Loading(Triton):
        def do_GET(self) -> None:
            self.path = f"{self.path}?missing"
            super().do_GET()

    with (
        serving_triton(Loading) as loading,
        serving_triton() as ready,
        serving_gateway(loading, ready) as client,
    ):
        statuses = {client.get("/v2/models/demo/ready").status_code for _ in range(4)}
    assert statuses == {200}
    with serving_triton(Loading) as loading, serving_gateway(loading, loading) as client:
        assert client.get("/v2/models/demo/ready").status_code == 400


def test_error_of_a_server_is_passed_if_the_others_refuse_the_connection() -> None:
    class Failing(Triton):
        def do_GET(self) -> None:
            self.path = f"{self.path}?missing"
            super().do_GET()

    closed = f"127.0.0.1:{free_ports(1)[0]}"
    for turn in range(2):
        with serving_triton(Failing) as failing:
            servers = (failing, closed) if turn else (closed, failing)
            with serving_gateway(*servers) as client:
                response = client.get("/v2/models/demo/ready")
        assert (response.status_code, response.json()["address"]) == (400, failing)


def test_server_that_does_not_respond_is_not_ready(tmp_path: Path) -> None:
    """Triton reports that it is ready even if its engine hangs."""
    ready = ("/v2/health/ready", "/v2/models/demo/ready", "/v2/models/demo/versions/1/ready")
    state = {"phase": "unresponsive", "why": ["the engine hangs"], "restarts": 0}
    with (
        serving_triton() as address,
        serving_gateway(address, server_directory=str(tmp_path)) as client,
    ):
        assert {client.get(path).status_code for path in ready} == {200}
        (tmp_path / "state.json").write_text(json.dumps(state))
        responses = [client.get(path) for path in ready]
        assert client.get("/v2/models/demo").status_code == 200
    assert {(each.status_code, each.json()["error"]) for each in responses} == {
        (503, "The server does not respond: the engine hangs. Retry the request.")
    }


def test_unknown_http_address_is_not_replaced_by_a_default() -> None:
    """The gateway must never send requests to another server on port 8000."""
    with serving_gateway("") as client:
        for path in (GENERATE, "/v2/health/ready"):
            response = client.request("POST" if path == GENERATE else "GET", path, json={})
            assert response.status_code == 404
            assert "pass the server's HTTP address to `tllm gateway`" in response.json()["error"]


def test_response_that_triton_does_not_complete_is_an_error() -> None:
    class Failing(Triton):
        def do_GET(self) -> None:
            is_stream = self.path.endswith("_stream")
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream" if is_stream else "text/plain")
            self.send_header("Content-Length", "99")
            self.end_headers()
            self.wfile.write(b"data: {}\n\n")
            self.close_connection = True

        do_POST = do_GET

    with serving_triton(Failing) as address, serving_gateway(address) as client:
        whole = client.post(GENERATE, json={})
        streamed = client.post("/v2/models/demo/generate_stream", json={})
        metrics = client.get("/metrics").text
    error = {"error": "The request to Triton failed (ClientPayloadError). Retry the request."}
    assert (whole.status_code, whole.json()) == (503, error)
    last = streamed.text.removesuffix("\n\n").split("\n\n")[-1]
    assert json.loads(last.removeprefix("data: ")) == error
    assert 'error_type="500"' not in metrics
