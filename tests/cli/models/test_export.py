from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import Tllm
from tests.samples.builds import ENGINE
from tests.samples.repositories import add_model
from trtllm_serve_cli.paths import find_home


def test_export_prints_the_file_that_makes_the_model_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home_folder: Path
) -> None:
    path = add_model(find_home(), "mine").path
    assert Tllm(monkeypatch, capsys)("export", "mine") == (
        0,
        f"model:\n  name: mine\n  source: {ENGINE.source}\nengine:\n  kind: openvino\n",
        "",
    )
    _, out, _ = Tllm(monkeypatch, capsys)("export", "mine", "--json")
    declared = {"model": {"name": "mine", "source": ENGINE.source}, "engine": {"kind": "openvino"}}
    assert json.loads(out) == declared
    path.rename(home_folder / "elsewhere")
    code, out, _ = Tllm(monkeypatch, capsys)("export", "--repo", str(home_folder / "elsewhere"))
    assert (code, out.splitlines()[-2:]) == (0, ["repository:", f"  dir: {home_folder}/elsewhere"])
