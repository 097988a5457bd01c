"""The processes of a server: what is missed when it is gone, and how much memory they have."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import psutil

from tests.samples.launch_plans import fake_plan
from tests.waiting import wait_until
from trtllm_serve_cli.launch.containers.container import Container
from trtllm_serve_cli.launch.server_state import ServerState, describe_myself
from trtllm_serve_cli.launch.servers.running import RunningServer
from trtllm_serve_cli.launch.supervisor.server_processes import (
    Part,
    confirm_dead,
    find_dead,
    follow_models,
    measure_memory,
    report_dead,
)

ALIVE = describe_myself("ready")
SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")


def server_of(servers: Path, state: ServerState = ALIVE) -> RunningServer:
    plan = fake_plan(servers)
    return RunningServer(plan.directory, plan, state)


def test_model_that_was_unloaded_is_not_missed_and_one_that_died_is() -> None:
    stay, died, unloaded = (subprocess.Popen(SLEEP) for _ in range(3))
    parts = {
        psutil.Process(each.pid): Part(f"{what} died", what)
        for each, what in ((stay, "a"), (died, "b"), (unloaded, "c"))
    }
    now = {process: part for process, part in parts.items() if process.pid == stay.pid}
    for each in (died, unloaded):
        each.kill()
    # As Triton does with those that it ends itself.
    unloaded.wait()
    wait_until(lambda: psutil.Process(died.pid).status() == psutil.STATUS_ZOMBIE)
    assert set(report_dead(find_dead(parts))) == {"b died", "c died"}
    followed = follow_models(parts, now)
    assert [part.model for part in followed.values()] == ["a", "b"]
    assert report_dead(find_dead(followed)) == ("b died",)
    stay.kill()
    stay.wait(), died.wait()


def test_rank_is_missed_however_it_ended() -> None:
    with subprocess.Popen(SLEEP) as rank:
        parts = {psutil.Process(rank.pid): Part("rank 1 died")}
        rank.kill()
    dead = find_dead(follow_models(parts, {}))
    assert report_dead(confirm_dead(dead, {})) == ("rank 1 died",)


def test_model_that_ends_at_the_moment_of_a_look_may_have_been_unloaded() -> None:
    with subprocess.Popen(SLEEP) as stub:
        parts = {psutil.Process(stub.pid): Part("a died", "a")}
        stub.kill()
        wait_until(lambda: psutil.Process(stub.pid).status() == psutil.STATUS_ZOMBIE)
        followed = follow_models(parts, {})
        dead = find_dead(followed)
        assert (report_dead(dead), confirm_dead(dead, {})) == (("a died",), {})
        # Nobody waits for one that died by itself.
        assert confirm_dead(find_dead(follow_models(followed, {})), dead) == dead
    assert find_dead(follow_models(followed, {})) == {}


def test_memory_is_told_by_part(tmp_path: Path) -> None:
    memory = measure_memory(server_of(tmp_path))
    assert memory["supervisor"] > 1_000_000


def test_memory_of_a_server_that_is_gone(tmp_path: Path) -> None:
    gone = dataclasses.replace(ALIVE, supervisor_pid=2**22 + 1)
    assert measure_memory(server_of(tmp_path, gone)) == {}


def test_memory_in_a_container_counts(tmp_path: Path) -> None:
    """Its processes are nobody's children that a supervisor knows."""
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
