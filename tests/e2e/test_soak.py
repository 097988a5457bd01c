"""A short soak: load, kills and checks, as `make soak` runs them for an hour."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import Tllm
from tests.ports import free_ports

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def test_short_soak_finds_no_problem(tmp_path: Path) -> None:
    tllm = Tllm(tmp_path / "home")
    output = tmp_path / "result"
    command = (
        sys.executable, str(SCRIPT), "--engine=sim", "--minutes=0.3", "--round-s=3",
        "--sample-s=0.5", "--warmup-s=3", f"--http-port={free_ports(4)[0]}", f"--output={output}",
    )  # fmt: skip
    result = subprocess.run(
        command, env=tllm.environ, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((output / "sim" / "summary.json").read_text())
    assert summary["kills"] == {"engine worker": 1, "gateway": 1, "stub of tensorrt_llm": 1}
    assert {"gateway", "tritonserver"} <= {each["part"] for each in summary["growth"]}
    assert all(each["tokens"] > 0 for each in summary["clients"].values())
    assert "<svg" in (output / "sim" / "soak.html").read_text()
