"""The examples and the commands of README run, and print the documented output."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import TLLM, Tllm
from tests.ports import free_ports

EXAMPLES = Path(__file__).parents[2] / "examples"
README = Path(__file__).parents[2] / "README.md"
# The test of demo.sh runs these commands of README, except those that download from the hub.
RUN_ELSEWHERE = re.compile(r"(python3|pip|tllm (import|start|stop))\b")


def expected(name: str) -> str:
    return (EXAMPLES / f"{name}.expected").read_text(encoding="utf-8")


def run_script(tllm: Tllm, name: str, *words: str, **environ: str) -> Any:
    path = f"{Path(TLLM).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        (str(EXAMPLES / name), *words),
        env={**tllm.environ, "PATH": path, **environ},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture
def tllm(imported_demo: Tllm, tmp_path: Path) -> Iterator[Tllm]:
    """Provide a home that contains the demo's engine, so that an import does not build it again."""
    tllm = imported_demo.with_own_home(tmp_path / "home")
    yield tllm
    tllm("stop", "--all", "--timeout", "0")


def test_quickstart(tllm: Tllm) -> None:
    names = ("http", "grpc", "metrics", "openai")
    words = [f"--{name}-port={port}" for name, port in zip(names, free_ports(4), strict=True)]
    result = run_script(tllm, "quickstart.sh", *words)
    assert (result.returncode, result.stdout) == (0, expected("quickstart")), result.stderr


def test_streaming_client(served_demo: Tllm) -> None:
    script = str(EXAMPLES / "streaming_client.py")
    command = (sys.executable, script, "--address", served_demo.endpoint().grpc, "One, two, three,")
    result = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert (result.returncode, result.stdout) == (0, expected("streaming_client")), result.stderr


def test_batch(served_demo: Tllm) -> None:
    result = served_demo("infer", "--raw", "--batch", str(EXAMPLES / "batch.jsonl"))
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    expected_lines = [json.loads(line) for line in expected("batch").splitlines()]
    *good, failed = answers
    assert result.returncode == 3
    assert [{key: answer[key] for key in expected_lines[0]} for answer in good] == expected_lines[
        :2
    ]
    assert expected_lines[2]["error"] in failed["error"]


def test_demo_runs_everything_and_leaves_nothing_running(tllm: Tllm) -> None:
    names = ("HTTP_PORT", "GRPC_PORT", "METRICS_PORT", "OPENAI_PORT")
    ports = dict(zip(names, map(str, free_ports(4)), strict=True))
    result = run_script(tllm, "demo.sh", **ports)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Done in" in result.stdout
    assert json.loads(tllm.done("status", "--json")) == {"servers": []}
    assert json.loads((tllm.home / "results" / "summary.json").read_text())


def test_declaration(tllm: Tllm) -> None:
    http, grpc, metrics = free_ports(3)
    assert tllm("import", "-f", str(EXAMPLES / "tllm.yaml")).returncode == 0
    ports = (f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}")
    assert tllm("start", *ports, "--no-openai").returncode == 0
    answer = tllm("infer", "What is ML?", "--max-tokens", "8")
    assert (answer.returncode, answer.stdout.strip() != "") == (0, True), answer.stderr


def list_readme_commands() -> list[str]:
    """Return the commands in README's section on laptops that need a running server, or none."""
    section = README.read_text("utf-8").split("## Five minutes on a laptop\n")[1].split("\n## ")[0]
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```", section, re.M | re.S))
    commands = blocks.replace("\\\n", " ").splitlines()
    return [each for each in commands if not RUN_ELSEWHERE.match(each)]


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_readme_commands_run(served_demo: Tllm, tmp_path: Path) -> None:
    commands = list_readme_commands()
    assert {each.split()[0] for each in commands} == {"tllm", "curl"}
    status = served_demo.status()
    path = f"{Path(TLLM).parent}{os.pathsep}{os.environ['PATH']}"
    for command in commands:
        here = command.replace("localhost:9000", status["openai"])
        here = here.replace("localhost:8000", status["http"]).replace("curl ", "curl --fail ")
        result = subprocess.run(
            ("bash", "-c", here),
            env={**served_demo.environ, "PATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert result.returncode == 0, command + result.stdout + result.stderr
        assert result.stdout.strip(), command
    assert (tmp_path / "results" / "report.html").exists()
