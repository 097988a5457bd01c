"""Servers in podman containers, with the demo model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.conftest import Tllm
from tests.e2e.podman import (
    IMAGE,
    container_skip_reason,
    make_image,
    run_podman,
    skip_reason,
    use_own_store,
)
from tests.ports import free_ports
from tests.samples.lora_adapters import make_adapter, write_peft
from tests.waiting import is_gone, wait_until
from trtllm_serve_cli.launch.supervisor.server_processes import wait_until_dead
from trtllm_serve_cli.launch.triton.drain import draining

pytestmark = pytest.mark.skipif(skip_reason() != "", reason=skip_reason())


@dataclass(frozen=True)
class ContainerTllm(Tllm):
    """`tllm` with podman's test store."""

    store: Mapping[str, str] = field(default_factory=dict)
    repository: Path = Path()

    @property
    def environ(self) -> dict[str, str]:
        return {**super().environ, **self.store}

    def serve(self, *words: str, image: str = IMAGE) -> subprocess.CompletedProcess[str]:
        return self.start(*self.words(image), *words)

    def words(self, image: str = IMAGE) -> tuple[str, ...]:
        options = ("--mode=container", "--container-engine=podman", f"--image={image}")
        return (f"--repo={self.repository}", *options)

    def podman(self, *words: str) -> str:
        result = run_podman(*words, environ=self.store)
        result.check_returncode()
        return result.stdout

    def containers(self) -> list[str]:
        return self.podman("ps", "--all", "--format={{.Names}}").split()

    def servers(self) -> list[dict[str, Any]]:
        servers: list[dict[str, Any]] = json.loads(self.done("status", "--json"))["servers"]
        return servers


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Make a podman store that contains the image, and yield its environment."""
    root = tmp_path_factory.mktemp("podman")
    environ = use_own_store(root)
    make_image(root, environ)
    if why := container_skip_reason(environ):
        pytest.skip(f"podman cannot run containers here: {why}")
    yield environ
    run_podman("rmi", "--all", "--force", environ=environ).check_returncode()


@pytest.fixture(scope="module")
def repository(imported: Tllm, source: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Import the demo in the llmapi layout, whose only model starts faster."""
    folder = tmp_path_factory.mktemp("llmapi") / "repository"
    imported.done("import", "-m", "demo", "-s", source, "--layout", "llmapi", "--repo", str(folder))
    return folder


@pytest.fixture
def tllm(tmp_path: Path, store: Mapping[str, str], repository: Path) -> Iterator[ContainerTllm]:
    """Provide a new home, and remove its containers at the end."""
    tllm = ContainerTllm(tmp_path / "home", store, repository)
    yield tllm
    tllm("stop", "--all")
    for name in tllm.containers():
        tllm.podman("rm", "--force", "--time=0", name)


@pytest.fixture(scope="module")
def answer(imported: Tllm) -> str:
    """Return the response of the engine outside containers."""
    return infer(imported, "--no-server")


def infer(tllm: Tllm, *words: str) -> str:
    return tllm.done("infer", "The capital of France is", "--raw", "--max-tokens=3", *words)


def ask_gateway(tllm: Tllm, *words: str) -> str:
    """Return the response to a chat completion through the gateway."""
    options = ("--temperature", "0", "--max-tokens", "8", *words)
    return tllm.done("infer", "-i", "openai", "What is the capital of France?", *options)


def test_server_in_a_container_serves_restarts_and_stops(
    tllm: ContainerTllm, answer: str, tmp_path: Path
) -> None:
    adapter = make_adapter({"model.layers.0.self_attn.q_proj": (576, 576)})
    poet = write_peft(tmp_path / "poet", adapter)
    started = tllm.serve("--openai", f"--openai-port={free_ports(1)[0]}", f"--lora=poet={poet}")
    assert started.returncode == 0, started.stdout + started.stderr
    (name,) = tllm.containers()
    assert infer(tllm) == answer
    assert ask_gateway(tllm)
    # The engine worker in the container reads the adapter.
    assert ask_gateway(tllm, "--model=poet")
    status = tllm.status()
    # The container's processes are found, although they are not children of the supervisor.
    assert {"supervisor", "tritonserver", "engine worker", "model tensorrt_llm"} <= set(
        status["memory_bytes"]
    )
    assert psutil.Process(status["server_pid"]).name() == "tritonserver"
    (directory,) = (tllm.home / "servers").iterdir()
    with draining(directory, ["tensorrt_llm"]):
        assert "tensorrt_llm does not accept new requests" in tllm("infer", "hello").stderr
    assert infer(tllm) == answer

    tllm.podman("kill", name)
    wait_until(lambda: tllm.state().restarts == 1)
    # The supervisor may also notice the death of a model first.
    assert {
        "the server was terminated by signal 9",
        "the process of model tensorrt_llm died",
    } & set(tllm.state().why)
    wait_until(lambda: tllm.is_back(1), 180)
    assert infer(tllm) == answer
    assert ask_gateway(tllm)

    stubs = psutil.Process(tllm.status()["server_pid"]).children()
    stubs[0].kill()
    wait_until(lambda: tllm.state().restarts == 2)
    assert tllm.state().why[0].startswith("the process of model ")
    wait_until(lambda: tllm.is_back(2), 180)
    assert infer(tllm) == answer

    triton = psutil.Process(tllm.status()["server_pid"])
    everything = [triton, *triton.children(recursive=True)]
    tllm.done("stop")
    assert (wait_until_dead(everything, 0), tllm.containers()) == ([], [])
    log = next(tllm.home.glob("servers/*/server.log")).read_text()
    assert "Exit timeout expired" not in log
    assert log.count("successfully unloaded 'tensorrt_llm'") == 1


def test_container_does_not_outlive_its_supervisor(tllm: ContainerTllm) -> None:
    tllm.serve()
    triton = tllm.status()["server_pid"]
    os.kill(tllm.status()["supervisor_pid"], signal.SIGKILL)
    # The attached `podman run` stops the container when the supervisor dies.
    wait_until(lambda: is_gone(triton))
    # On a busy machine, podman needs more than a minute to remove a container.
    wait_until(lambda: tllm.containers() == [], 180)
    assert [server["state"] for server in tllm.servers()] == ["died"]


def test_orphaned_container_is_removed_by_the_next_start(tllm: ContainerTllm) -> None:
    tllm.serve()
    status = tllm.status()
    supervisor = psutil.Process(status["supervisor_pid"])
    for process in (supervisor, *supervisor.children()):
        process.kill()
    assert not is_gone(status["server_pid"])
    assert len(tllm.containers()) == 1
    ports = {what: int(status[what].rpartition(":")[2]) for what in ("http", "grpc", "metrics")}
    started = tllm.done(
        "start", *tllm.words(), "--json", "--no-openai",
        *(f"--{what}-port={port}" for what, port in ports.items()),
    )  # fmt: skip
    assert is_gone(status["server_pid"])
    assert json.loads(started)["http"] == status["http"]
    assert len(tllm.containers()) == 1


def test_two_servers_in_containers_side_by_side(tllm: ContainerTllm, answer: str) -> None:
    for _ in range(2):
        assert tllm.serve().returncode == 0
    first, second = (server["http"] for server in tllm.servers())
    taken = tllm("start", *tllm.words(), f"--http-port={first.rpartition(':')[2]}")
    assert (taken.returncode, "already exists." in taken.stderr) == (3, True)
    assert len(tllm.containers()) == 2
    assert answer == infer(tllm, "--model=tensorrt_llm", f"--url={first}", "-i", "http")
    tllm.done("stop", "-u", first)
    assert answer == infer(tllm, "--model=tensorrt_llm", f"--url={second}", "-i", "http")
    assert len(tllm.containers()) == 1
    tllm.done("stop")
    assert tllm.containers() == []


def test_image_without_triton_is_reported_and_leaves_no_container(
    tllm: ContainerTllm, tmp_path: Path
) -> None:
    (tmp_path / "nothing").write_text("here\n")
    archive = tmp_path / "empty.tar"
    subprocess.run(("tar", "-cf", archive, "-C", tmp_path, "nothing"), check=True)
    tllm.podman("import", "--quiet", str(archive), "empty")
    result = tllm.serve(image="empty")
    assert (result.returncode, "did not become ready" in result.stderr) == (3, True)
    assert "tritonserver" in result.stderr
    assert "executable file not found in $PATH" in result.stderr
    assert tllm.containers() == []
