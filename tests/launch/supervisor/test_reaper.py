"""The reaper kills the session of a server whose supervisor was killed, and only then."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import psutil

from tests.waiting import wait_until
from trtllm_serve_cli.launch.supervisor import reaper
from trtllm_serve_cli.launch.supervisor.reaper import Reaper, kill_session, list_session
from trtllm_serve_cli.launch.supervisor.server_processes import wait_until_dead
from trtllm_serve_cli.launch.triton.shared_memory import region_prefix

# A process that starts a child process, which outlives it, and prints the child's id.
SERVER = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
time.sleep(600)
"""
# A process whose main thread ends, while another thread keeps running. A killed process is in this
# state for up to some milliseconds.
HALF_ENDED = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[__import__("platform").machine()], 0)
"""
# A supervisor that prints the id of its server, and then waits to be killed.
SUPERVISOR = """
import subprocess, sys, time
from trtllm_serve_cli.launch.supervisor.reaper import Reaper
server = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True,
                          stdout=subprocess.PIPE, text=True)
child = server.stdout.readline()
reaper = Reaper("tllm-test-reaper-")
for _ in range(2):
    reaper.guard(server.pid)
print(server.pid, child, flush=True)
time.sleep(600)
"""


def start_server() -> tuple[subprocess.Popen[str], psutil.Process]:
    command = (sys.executable, "-c", SERVER)
    server = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    return server, psutil.Process(int(server.stdout.readline()))


def test_kills_a_session_whose_leader_has_ended() -> None:
    server, child = start_server()
    assert set(list_session(server.pid)) == {server.pid, child.pid}
    server.kill()  # The server is a zombie until `communicate` is called.
    kill_session(server.pid)
    assert list_session(server.pid) == []
    assert wait_until_dead([child], 60) == []
    server.communicate()


def test_process_has_not_ended_until_all_its_threads_have() -> None:
    server = subprocess.Popen((sys.executable, "-c", HALF_ENDED), start_new_session=True)
    process = psutil.Process(server.pid)
    wait_until(lambda: process.status() == psutil.STATUS_ZOMBIE)
    assert (list_session(server.pid), wait_until_dead([process], 0)) == ([server.pid], [process])
    server.kill()
    assert wait_until_dead([process], 60) == []
    assert list_session(server.pid) == []
    server.wait()


def test_kills_the_server_and_removes_its_memory_after_the_supervisor_is_killed() -> None:
    region = Path(reaper.SHARED_MEMORY, "tllm-test-reaper-region")
    region.touch()
    command = (sys.executable, "-c", textwrap.dedent(SUPERVISOR), SERVER)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        server, child = (psutil.Process(int(pid)) for pid in supervisor.stdout.readline().split())
        (watcher,) = (each for each in psutil.Process(supervisor.pid).children() if each != server)
        assert watcher.is_running() and region.exists()
        supervisor.kill()
    assert wait_until_dead([server, child, watcher], 60) == []
    assert not region.exists()


def test_reaper_of_an_earlier_server_keeps_the_regions_of_a_new_one_on_the_same_port() -> None:
    earlier, new = (
        Path(reaper.SHARED_MEMORY, f"{region_prefix(8000, token)}test") for token in ("a", "b")
    )
    for region in (earlier, new):
        region.touch()
    subprocess.run(
        (sys.executable, "-I", "-S", reaper.__file__, region_prefix(8000, "a")),
        input="1000000000\n",
        text=True,
        timeout=60,
        check=True,
    )
    assert (earlier.exists(), new.exists()) == (False, True)
    new.unlink()


def test_keeps_the_server_if_the_supervisor_ends_the_reaper() -> None:
    server, child = start_server()
    watching = Reaper("tllm-test-reaper-")
    watching.guard(server.pid)
    watching.end()
    assert set(list_session(server.pid)) == {server.pid, child.pid}
    kill_session(server.pid)
    server.communicate()
