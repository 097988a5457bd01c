from __future__ import annotations

from pathlib import Path

import pytest

from tests.build.samples import ENGINE
from tests.cli.running import Tllm
from tests.repository.samples import add_model
from trtllm_serve_cli.paths import find_home


def test_export_prints_the_file_that_makes_the_model_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home_folder: Path
) -> None:
    add_model(find_home(), "mine")
    assert Tllm(monkeypatch, capsys)("export", "mine") == (
        0,
        f"model:\n  name: mine\n  source: {ENGINE.source}\nengine:\n  kind: openvino\n",
        "",
    )
