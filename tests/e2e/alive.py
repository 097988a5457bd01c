"""Find the processes of a server, and check that it generates tokens."""

from __future__ import annotations

import psutil

from tests.e2e.conftest import Tllm
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.server import probe_token
from trtllm_serve_cli.errors import TllmError


def processes_of(tllm: Tllm) -> list[psutil.Process]:
    """Return the server's supervisor and all its descendants."""
    supervisor = psutil.Process(tllm.state().supervisor_pid)
    return [supervisor, *supervisor.children(recursive=True)]


def find_process(tllm: Tllm, word: str) -> psutil.Process:
    return next(each for each in processes_of(tllm) if word in command_of(each))


def command_of(process: psutil.Process) -> str:
    """Return the command line of a process, or "" if the process has just ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def answers(endpoint: Endpoint) -> bool:
    """Return whether `demo` generates a token. Print the error otherwise, for failed tests."""
    try:
        probe_token(endpoint, "demo", 20)
    except TllmError as error:
        print(error, error.why)
        return False
    return True
