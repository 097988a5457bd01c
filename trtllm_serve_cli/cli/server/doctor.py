"""`tllm doctor`: check this machine and print a fix for each problem."""

from __future__ import annotations

import dataclasses

import typer

from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.exits import USER_CAN_FIX
from trtllm_serve_cli.cli.shared.options import JsonOption

_INDENT = " " * 26
_MARKS = {"ok": "ok", "note": "note", "problem": "PROBLEM"}


def doctor(as_json: JsonOption = False) -> None:
    """Check this machine and print a fix for each problem.

    The exit code is 3 if a problem prevents a server from running.

    Example:  tllm doctor
    """
    from trtllm_serve_cli.launch.doctor.diagnosis import diagnose
    from trtllm_serve_cli.launch.doctor.machine_facts import collect_facts
    from trtllm_serve_cli.paths import find_home

    findings = diagnose(collect_facts(find_home()))
    problems = [finding for finding in findings if finding.verdict == "problem"]
    if as_json:
        output.show_json([dataclasses.asdict(finding) for finding in findings])
    else:
        for finding in findings:
            mark = f"{_MARKS[finding.verdict]:<8} {finding.what:<16} "
            print(output.wrap(finding.detail, first=mark, rest=_INDENT))
            if finding.fix and finding.verdict != "ok":
                print(output.wrap(f"→ {finding.fix}", first=_INDENT, rest=_INDENT))
        if problems:
            output.notify(
                "Number of problems to fix before a server can run on this machine: "
                f"{len(problems)}."
            )
        else:
            output.notify("A server can run on this machine.")
    if problems:
        raise typer.Exit(USER_CAN_FIX)
