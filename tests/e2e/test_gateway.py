"""The OpenAI-compatible gateway in front of a real server, used by OpenAI's client."""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from tests.e2e.conftest import Tllm
from tests.e2e.core import gauge
from tests.ports import free_ports
from tests.waiting import is_gone, wait_until
from trtllm_serve_cli.client.endpoint import Endpoint

MESSAGES: Any = [{"role": "user", "content": "What is ML?"}]


@pytest.fixture(scope="module")
def address(served: Tllm) -> str:
    return str(served.status()["openai"])


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_chat_has_the_text_that_triton_generates(client: openai.OpenAI, served: Tllm) -> None:
    answer = client.chat.completions.create(
        model="demo", messages=MESSAGES, temperature=0, max_tokens=24
    )
    expected = served.done("infer", "What is ML?", "--max-tokens", "24", "--top-k", "1")
    assert (answer.choices[0].message.content or "").strip() == expected.strip()
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 24
    assert answer.choices[0].finish_reason == "length"


def test_gateway_next_to_an_engine_worker_does_not_load_grpc(
    client: openai.OpenAI, served: Tllm
) -> None:
    assert client.models.retrieve("demo")
    assert "cygrpc" not in Path(f"/proc/{served.state().gateway_pid}/maps").read_text()


def test_infer_finds_the_gateway(client: openai.OpenAI, served: Tllm) -> None:
    answer = client.chat.completions.create(
        model="demo", messages=MESSAGES, temperature=0, max_tokens=12
    )
    words = ("infer", "-i", "openai", "What is ML?", "--temperature", "0", "--max-tokens", "12")
    assert served.done(*words).strip() == (answer.choices[0].message.content or "").strip()


def test_json_object_starts_an_object(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="demo", messages=MESSAGES, n=4, max_tokens=4, response_format={"type": "json_object"}
    )
    assert all((each.message.content or "").startswith("{") for each in answer.choices)


def test_stream_equals_the_whole_response(client: openai.OpenAI) -> None:
    request: Any = {"model": "demo", "messages": MESSAGES, "temperature": 0, "max_tokens": 40}
    whole = client.chat.completions.create(**request)
    chunks = list(
        client.chat.completions.create(
            **request, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage


def test_seed_repeats_a_sample(client: openai.OpenAI) -> None:
    def sample(seed: int | None) -> str:
        answer = client.completions.create(
            model="demo", prompt="Once upon", max_tokens=8, seed=seed
        )
        return answer.choices[0].text

    assert sample(1) == sample(1) != sample(2)
    assert len({sample(None) for _ in range(3)}) > 1


def test_many_clients_at_the_same_time(client: openai.OpenAI) -> None:
    def ask(number: int) -> str:
        answer = client.completions.create(
            model="demo", prompt=f"{number} plus", max_tokens=4, temperature=0
        )
        return answer.choices[0].text

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        together = list(pool.map(ask, range(24)))
    assert together == [ask(number) for number in range(24)]


def test_errors_are_those_of_openais_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="The model 'x' does not exist"):
        client.chat.completions.create(model="x", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="maximum context length") as raised:
        client.chat.completions.create(model="demo", messages=MESSAGES, max_tokens=100_000)
    assert raised.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"stream": False}),
        ("/v1/completions", {"stream": True}),
        ("/v2/models/demo/generate", {}),
        ("/v2/models/demo/generate", {"id": "client's id"}),
        ("/v2/models/demo/generate_stream", {"stream": False}),
        ("/v2/models/demo/generate_stream", {"stream": True}),
    ],
    ids=["whole", "stream", "generate", "id", "one event", "stream of Triton"],
)
def test_client_that_disconnects_cancels_its_request(
    address: str, endpoint: Endpoint, path: str, fields: dict[str, Any]
) -> None:
    host, port = address.removeprefix("http://").split(":")
    request = {"model": "demo", "prompt": "a", "ignore_eos": True}
    if path.startswith("/v2"):
        request = {"text_input": "a", "end_id": -1}
    body = json.dumps({**request, "max_tokens": 4000, **fields})
    with socket.create_connection((host, int(port))) as sock:
        head = f"Host: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        sock.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n\r\n{body}".encode())
        wait_until(lambda: gauge(endpoint, "active") == 1)
    wait_until(lambda: gauge(endpoint, "active") == 0)


def test_triton_is_reached_behind_limits(address: str) -> None:
    def send(path: str, body: Any) -> tuple[int, bytes]:
        request = urllib.request.Request(f"{address}{path}", body)  # iterators are sent in chunks
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    generate = "/v2/models/demo/generate_stream"
    body = json.dumps({"text_input": "One, two,", "max_tokens": 3, "stream": True}).encode()
    status, events = send(generate, body)
    assert (status, events.count(b"data: {")) == (200, 3)
    # Each of these requests ends the embedded Triton if it arrives there.
    large = iter([b'{"text_input": "', b"x" * 9_000_000, b'"}'])
    assert send(generate, large)[0] == 413
    assert send(generate, b"[" * 1_000_000)[0] == 400
    # Triton must survive the largest body that the gateway passes on.
    numbers = b'{"text_input": [' + b"1, " * 2_700_000 + b"1]}"
    assert send(generate, numbers)[0] in (400, 500)
    assert send("/v2/repository/models/demo/unload", b"{}")[0] == 404
    assert send(generate, body) == (status, events)


def test_gateway_is_restarted_without_the_server(light_home: Callable[[], Tllm]) -> None:
    tllm = light_home()
    started = tllm.start("--openai", f"--openai-port={free_ports(1)[0]}")
    assert started.returncode == 0, started.stderr
    server = tllm.status()
    supervisor = psutil.Process(server["supervisor_pid"])
    (gateway,) = (
        each for each in supervisor.children() if "trtllm_serve_cli.gateway" in each.cmdline()
    )
    os.kill(gateway.pid, signal.SIGKILL)
    wait_until(lambda: is_gone(gateway.pid))

    def answers() -> bool:
        with openai.OpenAI(base_url=f"{server['openai']}/v1", api_key="any") as client:
            try:
                return bool(client.models.list().data)
            except openai.APIError:
                return False

    wait_until(answers, 60)
    assert tllm.status()["restarts"] == 0
