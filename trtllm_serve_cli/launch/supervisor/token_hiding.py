"""Hide the token for Triton's restricted APIs from other users."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.supervisor.server_processes import list_tree
from trtllm_serve_cli.runtime.watch.hidden_argument import hide_in_command_lines


class TokenHiding:
    """Hides the token in the command lines of a server and warns if the token remains visible."""

    def __init__(self, plan: LaunchPlan, log_start: int, warn: Callable[[str], None]) -> None:
        self._plan = plan
        self._log_start = log_start
        self._warn = warn
        self._is_hidden = False
        self._visible: dict[int, str] = {}

    def hide(self, pid: int) -> None:
        """Hide the token in process `pid` and its descendants after Triton has read the token.

        Triton logs its first line after it has parsed its arguments. Do nothing if Triton runs in a
        container, because this process can write only to the memory of its descendants.
        """
        plan = self._plan
        token = plan.endpoint.restricted_token
        if self._is_hidden or not token or plan.container is not None or not self._has_logged():
            return
        pids = (pid, *(each.pid for each in list_tree(pid)))
        visible = hide_in_command_lines(pids, token)
        self._is_hidden = not visible
        for each in visible.keys() - self._visible:
            self._warn(
                f"the command line of process {each} shows other users the token for the "
                f"restricted APIs, because the token could not be overwritten: {visible[each]}"
            )
        self._visible |= visible

    def _has_logged(self) -> bool:
        """Return whether Triton has logged a line. Return False if the log cannot be read."""
        with contextlib.suppress(OSError):
            return self._plan.log.stat().st_size > self._log_start
        return False
