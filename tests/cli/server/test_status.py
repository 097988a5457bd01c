"""Tests of the command `tllm status` with a fake tritonserver."""

from __future__ import annotations

import dataclasses
import json
import os
import signal

import pytest

from tests.cli.running import Tllm
from tests.samples.launch_plans import fake_plan
from tests.waiting import wait_until
from trtllm_serve_cli.importing.import_record import ImportRecord, record_import
from trtllm_serve_cli.launch.server_state import (
    PLAN_FILE,
    describe_supervisor,
    read_state,
    write_state,
)
from trtllm_serve_cli.launch.startup import STARTUP_FILE
from trtllm_serve_cli.paths import Home

# A supervisor outlives the process that started it.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


def test_status_separates_servers(tllm: Tllm, home: Home) -> None:
    for name in ("m", "n"):
        plan = dataclasses.replace(fake_plan(home.servers), models=(name,))
        plan.directory.mkdir(parents=True)
        (plan.directory / PLAN_FILE).write_text(plan.to_json())
        gone = dataclasses.replace(describe_supervisor("ready"), supervisor_started_at=0.0)
        write_state(plan.directory, gone)
    parts = tllm("status")[1].split("\n\n")
    assert sorted(part.splitlines()[0] for part in parts) == ["m: died", "n: died"]


def test_status_shows_a_stopped_supervisor_and_the_report_of_a_hang(
    tllm: Tllm, home: Home, ports: list[str]
) -> None:
    tllm("start", *ports)
    directory = home.servers / ports[1]
    state = read_state(directory)
    assert state is not None
    os.kill(state.supervisor_pid, signal.SIGSTOP)
    write_state(directory, dataclasses.replace(state, hangs=2))
    wait_until(lambda: tllm("status")[1].startswith("m: unresponsive"))
    text = tllm("status")[1]
    server = json.loads(tllm("status", "--json")[1])["servers"][0]
    why = (
        "the server's supervisor is suspended; run "
        f"`kill -CONT {state.supervisor_pid}` to resume it"
    )
    assert f"m: unresponsive\n  {why}\n" in text
    assert f"  hang report {directory / 'hang-report.txt'}\n" in text
    assert (server["state"], server["hangs"], server["hang_report"]) == (
        "unresponsive", 2, str(directory / "hang-report.txt"),
    )  # fmt: skip


def test_status_shows_the_stages_of_a_start(tllm: Tllm, ports: list[str]) -> None:
    started = json.loads(tllm("start", *ports, "--json")[1])
    (server,) = json.loads(tllm("status", "--startup", "--json")[1])["servers"]
    (start,) = server["starts"]
    lines = tllm("status", "--startup")[1].splitlines()
    assert (server["state"], start["models"], start["why"]) == ("ready", ["m"], [])
    assert lines[0] == "m: ready"
    assert lines[1].startswith("  no import of m is recorded: ")
    assert lines[2].startswith("  start of m at ")
    names = [" ".join(line.split()[:2]) for line in lines[4:-1]]
    assert names == [each["name"] for each in start["stages"]]
    assert started["stages"] == start["stages"]
    assert lines[-1].split() == ["total", f"{start['total_s']:.1f}", "s"]


def test_status_shows_the_stages_of_the_import(tllm: Tllm, home: Home, ports: list[str]) -> None:
    record_import(home.models / "m", ImportRecord(0.0, {"checkpoint": 12.06, "engine": 28.9}))
    tllm("start", *ports)
    (server,) = json.loads(tllm("status", "--startup", "--json")[1])["servers"]
    lines = tllm("status", "--startup")[1].splitlines()
    assert server["imports"] == {
        "m": {"ended_at": 0.0, "stages_s": {"checkpoint": 12.06, "engine": 28.9}}
    }
    assert lines[1].startswith("  import of m at ")
    assert [line.split() for line in lines[2:6]] == [
        ["stage", "duration"],
        ["checkpoint", "12.1", "s"],
        ["engine", "28.9", "s"],
        ["total", "41.0", "s"],
    ]


def test_status_explains_a_missing_record_of_a_start(
    tllm: Tllm, home: Home, ports: list[str]
) -> None:
    tllm("start", *ports)
    (home.servers / ports[1] / STARTUP_FILE).unlink()
    restart = f"tllm restart -u 127.0.0.1:{ports[1]}"
    assert tllm("status", "--startup")[1].splitlines()[2] == (
        "  no start is recorded: the server's folder has no valid record; run "
        f"`{restart}` to record a start"
    )
