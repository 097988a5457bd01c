from __future__ import annotations

import json
from pathlib import Path

import pytest
from httpx import Response

from tests.gateway.fakes import FakeBackend, fail, make_client
from trtllm_serve_cli.gateway.access.guard import find_token
from trtllm_serve_cli.gateway.access.keys import add_key, hash_key

BODY = {"model": "demo", "prompt": "x", "max_tokens": 3}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def is_unauthorized(response: Response) -> bool:
    error = response.json()["error"]
    return (
        response.status_code == 401
        and error["code"] == "invalid_api_key"
        and set(error) == {"message", "type", "param", "code"}
        and response.headers["www-authenticate"].startswith("Bearer")
    )


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("POST", "/v1/completions"),
        ("GET", "/metrics"),
        ("GET", "/version"),
        ("GET", "/nope"),
        ("GET", "/v2"),
        ("POST", "/v2/models/demo/infer"),
        ("GET", "/health/"),
    ],
)
def test_a_key_is_required(file: Path, method: str, path: str) -> None:
    key = add_key(file, "alice", now_s=1.0)
    with make_client(FakeBackend(), {"keys_file": str(file)}) as client:
        for headers in ({}, bearer("wrong"), bearer(hash_key(key)), {"authorization": key}):
            assert is_unauthorized(client.request(method, path, headers=headers))


def test_both_headers_are_accepted(file: Path) -> None:
    key = add_key(file, "alice", now_s=1.0)
    with make_client(FakeBackend(), {"keys_file": str(file)}) as client:
        for headers in (bearer(key), {"authorization": f"bearer  {key}"}, {"x-api-key": key}):
            assert client.get("/v1/models", headers=headers).status_code == 200


def test_public_paths_and_preflight_need_no_key(file: Path) -> None:
    add_key(file, "alice", now_s=1.0)
    config = {"keys_file": str(file), "cors_origins": ("https://chat.example.com",)}
    with make_client(FakeBackend(), config) as client:
        assert client.get("/health").status_code == 200
        assert client.head("/").status_code == 200
        headers = {
            "origin": "https://chat.example.com",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization, content-type, x-stainless-os",
        }
        preflight = client.options("/v1/chat/completions", headers=headers)
        assert preflight.status_code == 200
        refused = client.get("/v1/models", headers={"origin": "https://chat.example.com"})
        foreign = client.get("/health", headers={"origin": "https://evil.example.com"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://chat.example.com"
    assert "x-request-id" in refused.headers["access-control-expose-headers"]
    assert "access-control-allow-origin" not in foreign.headers


def test_without_keys_any_token_is_accepted(file: Path) -> None:
    with make_client(FakeBackend(), {"keys_file": str(file)}) as client:
        for headers in ({}, bearer("anything"), {"x-api-key": "anything"}):
            assert client.get("/v1/models", headers=headers).status_code == 200


def test_models_of_a_key(file: Path) -> None:
    key = add_key(file, "alice", now_s=1.0, models=("other",))
    backend = FakeBackend()
    with make_client(backend, {"keys_file": str(file)}) as client:
        client.headers = bearer(key)
        assert client.get("/v1/models").json()["data"] == []
        assert client.get("/v1/models/demo").status_code == 404
        refused = client.post("/v1/completions", json=BODY)
        tokens = client.post("/tokenize", json={"model": "demo", "prompt": "x"})
        passed = [
            client.get("/v2/models/demo/config"),
            client.post("/v2/models/demo/generate", json={}),
        ]
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
    assert tokens.status_code == 404
    assert [each.status_code for each in passed] == [404, 404]
    assert backend.submitted == []


def test_limits_of_a_key(file: Path) -> None:
    key = add_key(file, "alice", now_s=1.0, requests_per_minute=1)
    with make_client(FakeBackend(), {"keys_file": str(file)}) as client:
        first = client.post("/v1/completions", json=BODY, headers=bearer(key))
        second = client.post("/v1/completions", json=BODY, headers=bearer(key))
        models = client.get("/v1/models", headers=bearer(key))
    assert (first.status_code, second.status_code, models.status_code) == (200, 429, 200)
    assert first.headers["x-ratelimit-remaining-requests"] == "0"
    assert 1 <= int(second.headers["retry-after"]) <= 60
    assert second.json()["error"]["code"] == "rate_limit_exceeded"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": [97]}),
        (
            "/v1/messages/count_tokens",
            {"model": "demo", "messages": [{"role": "user", "content": "x"}]},
        ),
    ],
)
def test_limits_apply_to_requests_that_count_tokens(
    file: Path, path: str, body: dict[str, object]
) -> None:
    key = add_key(file, "alice", now_s=1.0, requests_per_minute=1)
    with make_client(FakeBackend(), {"keys_file": str(file)}) as client:
        statuses = [client.post(path, json=body, headers=bearer(key)).status_code for _ in range(2)]
    assert statuses == [200, 429]


def test_token_limit_cannot_be_evaded_with_tritons_api(file: Path) -> None:
    key = add_key(file, "alice", now_s=1.0, tokens_per_minute=10)
    with make_client(FakeBackend(), {"keys_file": str(file)}) as client:
        path = "/v2/models/demo/generate"
        response = client.post(path, json={"text_input": "x"}, headers=bearer(key))
    assert response.status_code == 403
    assert "tokens-per-minute" in response.json()["error"]


@pytest.mark.parametrize("stream", [False, True])
def test_finished_requests_release_their_place(stream: bool) -> None:
    replies = (None, fail("the engine failed"), fail("too long: max_seq_len", rejected=True))
    for reply in replies:
        backend = FakeBackend() if reply is None else FakeBackend(reply)
        with make_client(backend, {"max_in_flight": 1, "max_waiting": 0}) as client:
            statuses = [
                client.post("/v1/completions", json={**BODY, "stream": stream}).status_code
                for _ in range(3)
            ]
        assert len(set(statuses)) == 1
        assert statuses[0] != 429


@pytest.mark.parametrize(
    ("sent", "is_echoed"),
    [("my-id.1", True), ("x" * 129, False), ("a b", False), ("", False), ("a\tb", False)],
)
def test_request_id(sent: str, is_echoed: bool) -> None:
    with make_client(FakeBackend()) as client:
        response = client.get("/v1/models", headers={"x-request-id": sent})
        other = client.get("/nope")
    returned = response.headers["x-request-id"]
    assert (returned == sent) is is_echoed
    assert returned
    assert other.headers["x-request-id"].startswith("req_")


def test_large_headers_are_rejected() -> None:
    with make_client(FakeBackend(), {"max_header_bytes": 2000}) as client:
        response = client.get("/health", headers={"x-big": "y" * 2000})
    assert response.status_code == 431
    assert response.json()["error"]["message"].startswith("The request headers total")


def test_a_bug_has_a_request_id() -> None:
    backend = FakeBackend()
    backend.submit = None  # type: ignore[assignment, method-assign]
    with make_client(backend) as client:
        response = client.post("/v1/completions", json=BODY, headers={"x-request-id": "id1"})
    assert (response.status_code, response.headers["x-request-id"]) == (500, "id1")
    assert "id1" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ([], ""),
        ([(b"authorization", b"Basic eA==")], ""),
        ([(b"authorization", b"Bearer ")], ""),
        ([(b"authorization", b"BEARER k")], "k"),
        ([(b"x-api-key", b" k ")], "k"),
        ([(b"x-api-key", b"a"), (b"authorization", b"Bearer b")], "b"),
        ([(b"authorization", b"Bearer "), (b"x-api-key", b"a")], "a"),
    ],
)
def test_tokens(headers: list[tuple[bytes, bytes]], token: str) -> None:
    assert find_token(headers) == token


def test_no_key_in_the_log(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    key = add_key(file, "alice", now_s=1.0)
    config = {"keys_file": str(file), "log_format": "json"}
    with make_client(FakeBackend(), config) as client:
        client.post("/v1/completions", json={**BODY, "prompt": "secret"}, headers=bearer(key))
        client.post(f"/v1/completions?api_key={key}", json=BODY, headers=bearer(key[:-1]))
    out, err = capfd.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [(each["status"], each.get("key")) for each in lines] == [(200, "alice"), (401, None)]
    assert key[5:20] not in out + err
    assert "secret" not in out + err
