"""Show how long the stages of model imports and server starts took."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trtllm_serve_cli.cli.shared import output

if TYPE_CHECKING:
    from trtllm_serve_cli.launch.servers.running import RunningServer


def describe_starts(server: RunningServer) -> dict[str, Any]:
    """Return a server's model imports and last starts as a JSON-compatible dict.

    The starts are sorted from newest to oldest.
    """
    import dataclasses

    from trtllm_serve_cli.importing.import_record import find_import
    from trtllm_serve_cli.launch.startup import read_starts

    starts = read_starts(server.directory)
    records = {
        model: find_import(path)
        for model, path in zip(server.models, server.plan.repositories, strict=True)
    }
    return {
        "models": list(server.models),
        "state": server.phase,
        "imports": {
            model: record and dataclasses.asdict(record) for model, record in records.items()
        },
        "starts": [dataclasses.asdict(each) for each in starts],
        "why_no_start": "" if starts else _explain_missing_start(server),
    }


def summarize_last_start(server: RunningServer) -> str:
    """Return the durations of the last start's stages as text, or "" if no start was recorded."""
    from trtllm_serve_cli.launch.startup import read_starts

    for start in read_starts(server.directory)[:1]:
        stages = {each.name: each for each in start.stages}
        first_token = stages["first token"]
        parts = {"models": first_token.begin_s, "first token": first_token.duration_s}
        optional = {"gateway": "gateway ready", "warm-up": "warm-up"}
        parts |= {
            part: stages[name].duration_s for part, name in optional.items() if name in stages
        }
        return ", ".join(f"{part} {duration_s:.1f} s" for part, duration_s in parts.items())
    return ""


def show_starts(server: dict[str, Any]) -> None:
    """Print a table of the stages for each import and each start of the server.

    `server` is the result of `describe_starts`.
    """
    print(f"{', '.join(server['models'])}: {server['state']}")
    for model, record in server["imports"].items():
        _show_import(model, record)
    if not server["starts"]:
        print(f"  no start is recorded: {server['why_no_start']}")
    for start in server["starts"]:
        why = f", restarted: {'; '.join(start['why'])}" if start["why"] else ""
        title = f"start of {', '.join(start['models'])}"
        print(f"  {title} at {_format_time(start['started_at'])}{why}")
        for problem in start["problems"]:
            print(f"  {problem}")
        rows = [
            (stage["name"], f"{stage['begin_s']:.1f} s", f"{stage['duration_s']:.1f} s")
            for stage in start["stages"]
        ]
        rows.append(("total", "", f"{start['total_s']:.1f} s"))
        output.show_table(("stage", "begins after", "duration"), rows, is_numeric=True)


def _show_import(model: str, record: dict[str, Any] | None) -> None:
    if record is None:
        print(
            f"  no import of {model} is recorded: the repository was created by an earlier "
            "version of tllm, or without `tllm import`"
        )
        return
    print(f"  import of {model} at {_format_time(record['ended_at'])}")
    stages_s = record["stages_s"] | {"total": sum(record["stages_s"].values())}
    rows = [(stage, f"{duration_s:.1f} s") for stage, duration_s in stages_s.items()]
    output.show_table(("stage", "duration"), rows, is_numeric=True)


def _explain_missing_start(server: RunningServer) -> str:
    if server.job is not None:
        return "Slurm jobs do not record their starts"
    if server.state.ready_at is None:
        return "the server has not become ready"
    restart = server.restart_command
    return f"the server's folder has no valid record; run `{restart}` to record a start"


def _format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
