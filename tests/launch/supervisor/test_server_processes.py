"""Required processes of a server and their memory."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import psutil

from tests.samples.launch_plans import fake_plan
from tests.waiting import wait_until
from trtllm_serve_cli.containers.container import Container
from trtllm_serve_cli.launch.server_state import ServerState, describe_supervisor
from trtllm_serve_cli.launch.servers.running import RunningServer
from trtllm_serve_cli.launch.supervisor.server_processes import (
    Part,
    confirm_dead,
    describe_dead,
    find_dead,
    measure_memory,
    update_parts,
    wait_until_dead,
)

ALIVE = describe_supervisor("ready")
SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")


def server_of(servers: Path, state: ServerState = ALIVE) -> RunningServer:
    plan = fake_plan(servers)
    return RunningServer(plan.directory, plan, state)


def test_unloaded_model_is_not_dead_but_a_crashed_one_is() -> None:
    kept, died, unloaded = (subprocess.Popen(SLEEP) for _ in range(3))
    parts = {
        psutil.Process(each.pid): Part(f"{what} died", what)
        for each, what in ((kept, "a"), (died, "b"), (unloaded, "c"))
    }
    now = {process: part for process, part in parts.items() if process.pid == kept.pid}
    for each in (died, unloaded):
        each.kill()
    # Triton also reaps the processes that it ends itself.
    unloaded.wait()
    wait_until(lambda: psutil.Process(died.pid).status() == psutil.STATUS_ZOMBIE)
    assert set(describe_dead(find_dead(parts))) == {"b died", "c died"}
    updated = update_parts(parts, now)
    assert [part.model for part in updated.values()] == ["a", "b"]
    assert describe_dead(find_dead(updated)) == ("b died",)
    kept.kill()
    kept.wait(), died.wait()


def test_rank_is_dead_however_it_ended() -> None:
    with subprocess.Popen(SLEEP) as rank:
        parts = {psutil.Process(rank.pid): Part("rank 1 died")}
        rank.kill()
    dead = find_dead(update_parts(parts, {}))
    assert describe_dead(confirm_dead(dead, {})) == ("rank 1 died",)


def test_model_is_dead_only_after_a_second_check() -> None:
    with subprocess.Popen(SLEEP) as stub:
        parts = {psutil.Process(stub.pid): Part("a died", "a")}
        stub.kill()
        wait_until(lambda: psutil.Process(stub.pid).status() == psutil.STATUS_ZOMBIE)
        updated = update_parts(parts, {})
        dead = find_dead(updated)
        assert (describe_dead(dead), confirm_dead(dead, {})) == (("a died",), {})
        # A process that died by itself is not reaped.
        assert confirm_dead(find_dead(update_parts(updated, {})), dead) == dead
    assert find_dead(update_parts(updated, {})) == {}


def test_memory_is_measured_by_part(tmp_path: Path) -> None:
    memory = measure_memory(server_of(tmp_path))
    assert memory["supervisor"] > 1_000_000


def test_helper_processes_belong_to_the_process_that_starts_them(tmp_path: Path) -> None:
    helper = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1); input()'])"
    command = (sys.executable, "-c", helper, "tllm_runtime.worker")
    before = set(measure_memory(server_of(tmp_path)))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        worker.stdout.readline()
        assert set(measure_memory(server_of(tmp_path))) - before == {"engine worker"}
        worker.communicate(b"\n")


def test_zombie_has_ended() -> None:
    with subprocess.Popen(("true",)) as process:
        assert wait_until_dead([psutil.Process(process.pid)], 60.0) == []


def test_memory_of_a_stopped_server_is_empty(tmp_path: Path) -> None:
    gone = dataclasses.replace(ALIVE, supervisor_pid=2**22 + 1)
    assert measure_memory(server_of(tmp_path, gone)) == {}


def test_memory_includes_processes_in_a_container(tmp_path: Path) -> None:
    """The processes of a container are not descendants of the supervisor."""
    server = server_of(tmp_path)
    with subprocess.Popen((sys.executable, "-c", "input()"), stdin=subprocess.PIPE) as inside:
        container = Container("podman", "mine:1", "tllm-1")
        server = dataclasses.replace(
            server,
            plan=dataclasses.replace(server.plan, container=container),
            state=dataclasses.replace(ALIVE, server_pid=inside.pid),
        )
        memory = measure_memory(server)
        assert set(memory) == {"supervisor", psutil.Process(inside.pid).name()}
        inside.communicate(b"\n")
