"""Show how long the stages of a server's last starts took, for `tllm status --startup`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trtllm_serve_cli.cli.shared import output

if TYPE_CHECKING:
    from trtllm_serve_cli.launch.servers.running import RunningServer


def describe_starts(server: RunningServer) -> dict[str, Any]:
    """Return the last starts of a server, newest first, as a JSON-compatible dict."""
    import dataclasses

    from trtllm_serve_cli.launch.startup import read_starts

    return {
        "models": list(server.models),
        "state": server.phase,
        "starts": [dataclasses.asdict(each) for each in read_starts(server.directory)],
    }


def show_starts(server: dict[str, Any]) -> None:
    """Print a table of stages for each start of the server."""
    print(f"{', '.join(server['models'])}: {server['state']}")
    if not server["starts"]:
        print("  no start is recorded: the server has not become ready")
    for start in server["starts"]:
        print(f"  {_describe_start(start)}")
        rows = [
            (stage["name"], f"{stage['begin_s']:.1f} s", f"{stage['duration_s']:.1f} s")
            for stage in start["stages"]
        ]
        rows.append(("total", "", f"{start['total_s']:.1f} s"))
        output.show_table(("stage", "begins after", "duration"), rows, is_numeric=True)


def _describe_start(start: dict[str, Any]) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(start["started_at"]))
    why = f", restarted: {'; '.join(start['why'])}" if start["why"] else ""
    return f"start of {', '.join(start['models'])} at {at}{why}"
