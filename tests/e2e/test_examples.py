"""The examples run and print the documented output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import TLLM, Tllm
from tests.ports import free_ports
from trtllm_serve_cli.client.endpoint import Endpoint

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "examples"


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


def test_quickstart(fresh_home: Any) -> None:
    names = ("http", "grpc", "metrics", "openai")
    words = [f"--{name}-port={port}" for name, port in zip(names, free_ports(4), strict=True)]
    result = run_script(fresh_home(), "quickstart.sh", *words)
    assert (result.returncode, result.stdout) == (0, expected("quickstart")), result.stderr


def test_streaming_client(endpoint: Endpoint) -> None:
    script = str(EXAMPLES / "streaming_client.py")
    command = (sys.executable, script, "--address", endpoint.grpc, "One, two, three,")
    result = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert (result.returncode, result.stdout) == (0, expected("streaming_client")), result.stderr


def test_batch(served: Tllm) -> None:
    result = served("infer", "--raw", "--batch", str(EXAMPLES / "batch.jsonl"))
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    expected_lines = [json.loads(line) for line in expected("batch").splitlines()]
    *good, failed = answers
    assert result.returncode == 3
    assert [{key: answer[key] for key in expected_lines[0]} for answer in good] == expected_lines[
        :2
    ]
    assert expected_lines[2]["error"] in failed["error"]


def test_demo_runs_everything_and_leaves_nothing_running(fresh_home: Any) -> None:
    tllm = fresh_home()
    names = ("HTTP_PORT", "GRPC_PORT", "METRICS_PORT", "OPENAI_PORT")
    ports = dict(zip(names, map(str, free_ports(4)), strict=True))
    result = run_script(tllm, "demo.sh", **ports)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Done in" in result.stdout
    assert json.loads(tllm.done("status", "--json")) == {"servers": []}
    assert json.loads((tllm.home / "results" / "summary.json").read_text())


def test_declaration(fresh_home: Any) -> None:
    tllm = fresh_home()
    http, grpc, metrics = free_ports(3)
    assert tllm("import", "-f", str(EXAMPLES / "tllm.yaml")).returncode == 0
    ports = (f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}")
    assert tllm("start", *ports, "--no-openai").returncode == 0
    answer = tllm("infer", "What is ML?", "--max-tokens", "8")
    assert (answer.returncode, answer.stdout.strip() != "") == (0, True), answer.stderr
