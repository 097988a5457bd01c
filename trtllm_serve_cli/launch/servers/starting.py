"""Wait until other commands have started a server."""

from __future__ import annotations

from collections.abc import Callable

from trtllm_serve_cli.launch.server_state import PLAN_FILE, START_LOCK
from trtllm_serve_cli.launch.servers.running import read_plan
from trtllm_serve_cli.paths import Home, hold_lock


def wait_for_starts(home: Home, model: str, on_wait: Callable[[], None]) -> None:
    """Wait until no other command is starting a server for `model`.

    `on_wait` is called for each starting server. A command holds the server's start lock until the
    server is ready or has failed.
    """
    for path in home.servers.glob(f"*/{PLAN_FILE}"):
        plan = read_plan(path.parent)
        if plan is not None and model in plan.models:
            with hold_lock(path.parent / START_LOCK, on_wait):
                pass
