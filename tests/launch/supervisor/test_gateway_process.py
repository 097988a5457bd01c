"""The process of the gateway, whose model has no server."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.ports import free_ports
from tests.samples.launch_plans import fake_plan
from tests.waiting import wait_until
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel
from trtllm_serve_cli.launch.supervisor.gateway_process import CONFIG_FILE, GatewayProcess


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gateway(tmp_path: Path, clock: Clock) -> Iterator[GatewayProcess]:
    plan = fake_plan(tmp_path)
    config = GatewayConfig(
        (ServedModel("m", "m", plan.endpoint),),
        port=free_ports(1)[0],
        server_directory=str(plan.directory),
    )
    plan.directory.mkdir()
    (plan.directory / CONFIG_FILE).write_text(config.to_json())
    process = GatewayProcess(dataclasses.replace(plan, gateway=config), clock)
    process.start()
    yield process
    process.end()


def kill(gateway: GatewayProcess) -> int:
    assert gateway.pid is not None
    process = psutil.Process(gateway.pid)
    process.kill()
    wait_until(lambda: process.status() == psutil.STATUS_ZOMBIE)
    return process.pid


def test_dead_gateway_is_restarted_with_back_off(gateway: GatewayProcess, clock: Clock) -> None:
    assert not gateway.restart_if_dead()
    first = kill(gateway)
    assert not gateway.restart_if_dead()
    clock.now_s += 1
    assert gateway.restart_if_dead()
    assert (gateway.num_restarts, gateway.pid != first) == (1, True)
    kill(gateway)
    clock.now_s += 0.9
    assert not gateway.restart_if_dead()
    clock.now_s += 0.2
    assert gateway.restart_if_dead()
    assert gateway.num_restarts == 2


def test_back_off_applies_to_failed_starts(
    gateway: GatewayProcess, clock: Clock, tmp_path: Path
) -> None:
    kill(gateway)
    (log,) = tmp_path.rglob("gateway.log")
    log.unlink()
    log.mkdir()
    clock.now_s += 61
    assert gateway.restart_if_dead()
    clock.now_s += 0.9
    assert not gateway.restart_if_dead()
    clock.now_s += 0.2
    assert gateway.restart_if_dead()


def test_gateway_reports_why_it_is_not_healthy(gateway: GatewayProcess) -> None:
    assert not gateway.is_healthy()
    wait_until(lambda: not gateway.is_healthy() and "The model 'm' is not ready" in gateway.problem)


def test_exit_code_is_explained(gateway: GatewayProcess) -> None:
    assert gateway.explain_exit() == ()
    kill(gateway)
    assert gateway.explain_exit()[0] == "the OpenAI-compatible gateway was terminated by signal 9"
