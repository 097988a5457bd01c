from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.gateway.fakes import FakeBackend, make_client
from tests.waiting import wait_until
from trtllm_serve_cli.runtime.pulse import PULSES_VARIABLE, read_pulses


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("GET", "/v1/chat/completions", 405),
        ("GET", "/v1/models/org/name", 404),
    ],
)
def test_unknown_paths_and_methods(method: str, path: str, status: int) -> None:
    with make_client(FakeBackend()) as client:
        response = client.request(method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("data", "content_type", "status"),
    [
        (b"{", "application/json", 400),
        (b'"\xff"', "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"messages":' * 20_000, "application/json; charset=utf-8", 400),
        (b"{}", "text/plain", 415),
        (b" " * 2000, "application/json", 413),
    ],
)
def test_bad_bodies(data: bytes, content_type: str, status: int) -> None:
    config = {"max_body_bytes": 1000 if status == 413 else 1 << 20}
    with make_client(FakeBackend(), config) as client:
        headers = {"content-type": content_type}
        response = client.post("/v1/chat/completions", content=data, headers=headers)
        chunked = client.post("/v1/chat/completions", content=iter([data]), headers=headers)
    assert [each.status_code for each in (response, chunked)] == [status, status]


def test_models() -> None:
    with make_client(FakeBackend()) as client:
        listed = client.get("/v1/models").json()
        one = client.get("/v1/models/demo").json()
    assert listed == {"object": "list", "data": [one]}
    assert (one["id"], one["object"], one["max_model_len"]) == ("demo", "model", 200)
    assert one["task"] == "generate"


def test_health_follows_the_engine() -> None:
    backend = FakeBackend()
    with make_client(backend) as client:
        checks = [("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")]
        assert [client.request(*each).status_code for each in checks] == [200] * 3
        backend.is_open = False
        responses = [client.request(*each) for each in checks]
    for response in responses:
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert "engine of the model 'demo'" in response.json()["error"]["message"]


def test_health_and_metrics_follow_the_supervisor(tmp_path: Path) -> None:
    state = tmp_path / "state.json"

    def record(phase: str) -> None:
        text = {"phase": phase, "why": ["Triton hangs", "so does m"], "restarts": 2, "hangs": 3}
        state.write_text(json.dumps(text).ljust(4096))

    with make_client(FakeBackend(), {"server_directory": str(tmp_path)}) as client:
        assert client.get("/health").status_code == 200
        assert "tllm_server_ready" not in client.get("/metrics").text
        record("ready")
        assert client.get("/health").status_code == 200
        assert "\ntllm_server_ready 1.0\n" in client.get("/metrics").text
        record("unresponsive")
        response = client.get("/health")
        metrics = client.get("/metrics").text
    assert (response.status_code, response.json()["error"]["message"]) == (
        503,
        "The server does not respond: Triton hangs; so does m. Retry the request.",
    )
    for line in ("ready 0.0", "hangs_total 3.0", "restarts_total 2.0"):
        assert f"\ntllm_server_{line}\n" in metrics


def test_event_loop_counts_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PULSES_VARIABLE, str(tmp_path))
    with make_client(FakeBackend()):
        wait_until(lambda: [each.num_beats > 1 for each in read_pulses(tmp_path)] == [True])
        (pulse,) = read_pulses(tmp_path)
        assert (pulse.role, pulse.pid) == ("gateway", os.getpid())
    assert list(tmp_path.iterdir()) == []


def test_tokenize_and_detokenize() -> None:
    with make_client(FakeBackend()) as client:
        ids = client.post("/tokenize", json={"model": "demo", "prompt": "né"}).json()
        messages = [{"role": "user", "content": "x"}]
        chat = client.post("/tokenize", json={"model": "demo", "messages": messages}).json()
        text = client.post("/detokenize", json={"model": "demo", "tokens": ids["tokens"]}).json()
        both = client.post("/tokenize", json={"model": "demo"})
    assert (ids["tokens"], ids["count"], text) == ([110, 233], 2, {"prompt": "né"})
    assert chat["count"] == len("user: x\nassistant: ")
    assert both.status_code == 400


def test_a_bug_is_reported_as_an_error() -> None:
    def crash(request_id: int, fields: object) -> object:
        raise AssertionError

    backend = FakeBackend()
    backend.submit = crash  # type: ignore[assignment, method-assign]
    with make_client(backend) as client:
        response = client.post("/v1/completions", json={"model": "demo", "prompt": "x"})
    assert response.status_code == 500
    assert json.loads(response.text)["error"]["type"] == "server_error"
