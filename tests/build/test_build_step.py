"""Placeholders of folders in a step's command."""

from __future__ import annotations

from pathlib import Path

from trtllm_serve_cli.build.build_step import SCRATCH, WORK, BuildStep


def test_a_step_writes_into_the_work_folder_and_one_in_it() -> None:
    step = BuildStep("Build", ("build", "--from", SCRATCH, "--into", WORK, "/other/{work}"))
    assert step.command_in(Path("/engines/my engine")) == (
        "build", "--from", "/engines/my engine/.scratch", "--into", "/engines/my engine",
        "/other/{work}",
    )  # fmt: skip
