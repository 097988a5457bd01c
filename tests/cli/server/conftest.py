"""Fixtures that serve an imported model with a fake tritonserver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import Tllm
from tests.ports import free_ports
from tests.samples.launch_plans import write_fake_tritonserver
from tests.samples.repositories import add_model
from trtllm_serve_cli.launch.servers.running import list_servers
from trtllm_serve_cli.launch.supervisor.stopping import stop_server
from trtllm_serve_cli.paths import Home, find_home


@pytest.fixture
def home(home_folder: Path) -> Iterator[Home]:
    """Yield a home with the model `m`, and stop its servers afterwards."""
    home = find_home()
    add_model(home, "m")
    yield home
    for server in list_servers(home):
        stop_server(server)


@pytest.fixture
def tllm(
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Tllm:
    """Run `tllm` with a fake tritonserver that behaves as $BEHAVIOUR selects."""
    program = tmp_path / "bin" / "tritonserver"
    write_fake_tritonserver(program)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return Tllm(monkeypatch, capsys)


@pytest.fixture
def ports() -> list[str]:
    names = ("--http-port", "--grpc-port", "--metrics-port")
    numbers = free_ports(3)
    words = [w for pair in zip(names, map(str, numbers), strict=True) for w in pair]
    return [*words, "--no-openai"]
