"""Tests of the command `tllm doctor` on the machine of the tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import Tllm
from tests.fakes.container_engines import write_engine

WHAT = ["Triton", "Python stub", "libpython", "NumPy", "engine openvino", "gateway", "disk",
        "memory", "shared memory", "open files", "GPU", "NVIDIA driver", "models", "docker",
        "podman", "model hub", "hub token", "MPI", "Slurm", "Kubernetes"]  # fmt: skip


@pytest.fixture
def tllm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Tllm:
    """Run `tllm` with a Triton that does not start, container engines, and no hub."""
    for engine in ("docker", "podman"):
        write_engine(tmp_path, engine)
    (tmp_path / "tritonserver").write_text("#!/bin/sh\necho no libb64\n")
    (tmp_path / "tritonserver").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return Tllm(monkeypatch, capsys)


def test_problem_is_shown_with_its_fix_and_exits_with_3(tllm: Tllm, tmp_path: Path) -> None:
    code, out, err = tllm("doctor")
    assert (code, "problems to fix before a server can run on this machine: " in err) == (3, True)
    assert out.splitlines()[:2] == [
        f"PROBLEM  Triton           {tmp_path}/tritonserver does not start: no libb64",
        "                          → reinstall this Triton, or remove it and run pip install "
        "'trtllm-serve-cli[embedded]'",
    ]


def test_findings_as_json_are_alone_on_stdout(tllm: Tllm) -> None:
    code, out, err = tllm("doctor", "--json")
    found = [each["what"] for each in json.loads(out) if not each["what"].startswith("port")]
    assert (code, err, found) == (3, "", WHAT)
