"""Keys, several processes and draining of the gateway in front of a real server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from tests.e2e.conftest import Tllm, homes_with
from tests.ports import free_ports
from tests.waiting import wait_until


@dataclass(frozen=True)
class Served:
    """A server that requires the key of `alice`."""

    tllm: Tllm
    url: str
    key: str

    def client(self, key: str | None = None) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key=key or self.key, max_retries=0)


@pytest.fixture(scope="module")
def keyed(light_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    # The other tests of the gateway do not send keys.
    with homes_with(light_model, tmp_path_factory.mktemp("keys")) as make:
        tllm = make()
        key = tllm.done("keys", "add", "alice").strip()
        port = free_ports(1)[0]
        gateway = ("--openai", f"--openai-port={port}", "--openai-processes=2")
        started = tllm.start(*gateway, "--warmup")
        assert started.returncode == 0, started.stderr
        yield Served(tllm, f"http://127.0.0.1:{port}/v1", key)


def test_requests_need_a_valid_key(keyed: Served) -> None:
    with keyed.client() as client:
        answer = client.completions.create(model="demo", prompt="a", max_tokens=3)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 3
    with keyed.client("tllm-wrong") as client, pytest.raises(openai.AuthenticationError) as raised:
        client.models.list()
    assert raised.value.code == "invalid_api_key"
    assert raised.value.request_id is not None


def test_warm_up_reaches_a_gateway_that_requires_keys(keyed: Served) -> None:
    (server,) = json.loads(keyed.tllm.done("status", "--startup", "--json"))["servers"]
    (start,) = server["starts"]
    assert (start["stages"][-1]["name"], start["problems"]) == ("warm-up", [])
    assert "key=supervisor" in keyed.tllm.done("logs", "--gateway")


def test_limits_and_revocation_apply_without_a_restart(keyed: Served) -> None:
    limits = ("--requests-per-minute", "1", "--models", "demo")
    key = keyed.tllm.done("keys", "add", "bob", *limits).strip()

    def status() -> int:
        with keyed.client(key) as client:
            try:
                client.completions.create(model="demo", prompt="a", max_tokens=1)
            except openai.APIStatusError as error:
                return error.status_code
            return 200

    # Each process reads the new key within a second. Each has its own part of the limit.
    wait_until(lambda: status() == 429)
    keyed.tllm.done("keys", "revoke", "bob")
    wait_until(lambda: {status() for _ in range(8)} == {401})


def test_log_and_status_describe_the_gateway(keyed: Served) -> None:
    with keyed.client() as client:
        client.completions.create(
            model="demo", prompt="confidential", max_tokens=2, extra_headers={"x-request-id": "me1"}
        )

    def line() -> str:
        lines = keyed.tllm.done("logs", "--gateway").splitlines()
        return "".join(each for each in lines if "request_id=me1" in each)

    wait_until(line)
    for word in ("POST /v1/completions 200", "key=alice", "model=demo", "output_tokens=2"):
        assert word in line()
    log = Path(keyed.tllm.home, "servers").glob("*/gateway.log")
    assert not any({keyed.key, "confidential"} & set(each.read_text().split()) for each in log)
    status = keyed.tllm.status()
    assert status["gateway_restarts"] == 0
    assert status["memory_bytes"]["gateway"] > 1_000_000


def test_long_log_is_rotated(keyed: Served) -> None:
    (log,) = Path(keyed.tllm.home, "servers").glob("*/gateway.log")
    with log.open("ab") as file:
        file.truncate(65 << 20)
    wait_until(lambda: log.stat().st_size < 1 << 20)
    with keyed.client() as client:
        client.models.list(extra_headers={"x-request-id": "after"})
    wait_until(lambda: "request_id=after" in log.read_text())


def test_stop_finishes_the_streams_of_all_processes(keyed: Served) -> None:
    """This test is the last one, because it stops the server."""
    num_streams = 6
    first_chunks = threading.Semaphore(0)
    reasons: list[str | None] = []

    def read_stream() -> None:
        with keyed.client() as client:
            stream = client.completions.create(
                model="demo",
                prompt="a",
                max_tokens=60,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            reason = None
            for number, chunk in enumerate(stream):
                if number == 0:
                    first_chunks.release()
                reason = chunk.choices[0].finish_reason
            reasons.append(reason)

    threads = [threading.Thread(target=read_stream) for _ in range(num_streams)]
    for thread in threads:
        thread.start()
    for _ in range(num_streams):
        assert first_chunks.acquire(timeout=60)
    keyed.tllm.done("stop")
    for thread in threads:
        thread.join(60)
    assert reasons == ["length"] * num_streams
