"""Several gateway processes on one port."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.ports import free_ports
from tests.waiting import is_gone, wait_until
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel
from trtllm_serve_cli.gateway.process_pool import Member, bind_shared


def make_config(tmp_path: Path) -> GatewayConfig:
    """Return a configuration of two processes whose model has no server."""
    endpoint = Endpoint(*3 * ("127.0.0.1:9",))
    return GatewayConfig(
        (ServedModel("demo", "demo", endpoint),),
        port=free_ports(1)[0],
        num_processes=2,
        server_directory=str(tmp_path),
    )


@contextmanager
def running_pool(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], GatewayConfig]]:
    config = make_config(tmp_path)
    file = tmp_path / "gateway.json"
    file.write_text(config.to_json())
    command = (sys.executable, "-m", "trtllm_serve_cli.gateway", str(file))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as pool:
        try:
            yield pool, config
        finally:
            pool.terminate()


def read(config: GatewayConfig, path: str) -> str:
    with urllib.request.urlopen(f"{config.url}{path}", timeout=10) as response:
        return str(response.read().decode())


def find_status(config: GatewayConfig, path: str) -> int:
    try:
        read(config, path)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    return 200


def answers(config: GatewayConfig) -> bool:
    try:
        return bool(read(config, "/"))
    except OSError:
        return False


def list_members(pool: subprocess.Popen[bytes]) -> list[int]:
    return [child.pid for child in psutil.Process(pool.pid).children()]


def list_stores(tmp_path: Path) -> list[str]:
    """Return the files of the processes that have stored metrics."""
    return [file.name for file in (tmp_path / "gateway-metrics").glob("gauge_*.db")]


def test_processes_share_the_port_and_their_metrics(tmp_path: Path) -> None:
    with running_pool(tmp_path) as (pool, config):
        wait_until(lambda: answers(config) and len(list_stores(tmp_path)) == 2)
        members = list_members(pool)
        for _ in range(20):
            assert find_status(config, "/unknown") == 404
        # Whichever process answers, it counts the requests of both.
        line = 'tllm_gateway_http_responses_total{status="404"} 20.0'
        wait_until(lambda: line in read(config, "/metrics"))
        pool.send_signal(signal.SIGTERM)
        assert pool.wait(30) == 0
    assert len(members) == 2
    wait_until(lambda: all(map(is_gone, members)))


def test_processes_end_with_the_first_process(tmp_path: Path) -> None:
    with running_pool(tmp_path) as (pool, config):
        wait_until(lambda: answers(config) and len(list_members(pool)) == 2)
        members = list_members(pool)
        pool.kill()
        pool.wait()
        wait_until(lambda: all(map(is_gone, members)))


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def member(tmp_path: Path) -> Iterator[tuple[Member, Clock]]:
    clock = Clock()
    member = Member(make_config(tmp_path), tmp_path, 0, clock)
    yield member, clock
    member.process.kill()
    member.process.wait()


def test_process_that_dies_is_restarted_after_a_pause(member: tuple[Member, Clock]) -> None:
    process, clock = member
    first = process.process
    assert process.restart_if_dead() is None
    clock.now_s += 60
    first.kill()
    first.wait()
    assert process.restart_if_dead() is None
    assert process.process is first
    clock.now_s += 60
    assert process.restart_if_dead() is None
    assert process.process.pid != first.pid


def test_process_that_cannot_start_ends_the_gateway(member: tuple[Member, Clock]) -> None:
    process, _ = member
    process.process.kill()
    process.process.wait()
    assert process.restart_if_dead() == 1


def test_port_of_another_program_cannot_be_bound(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    with socket.create_server(("127.0.0.1", config.port)), pytest.raises(OSError):
        bind_shared(config).close()
    with bind_shared(config), bind_shared(config):
        pass
