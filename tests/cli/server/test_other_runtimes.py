"""Tests of the notice about models with the runtime of another version."""

from __future__ import annotations

import json

import pytest

from tests.samples.repositories import add_model
from trtllm_serve_cli.cli.server.other_runtimes import notify_other_runtimes
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository.model.store import MANIFEST


def test_only_models_of_another_version_are_reported(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = (add_model(home, name).path for name in ("old", "new"))
    manifest = json.loads((old / MANIFEST).read_text())
    (old / MANIFEST).write_text(json.dumps({**manifest, "runtime": "of another version"}))
    notify_other_runtimes([old, new])
    assert capsys.readouterr().err == (
        "old uses the runtime of another version of tllm. To update it, stop its servers and run "
        "`tllm update old`.\n"
    )
