"""Every test has a TLLM_HOME of its own; none can touch the user's."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "tllm-home"
    for name in ("ENGINE_DEST_PATH", "HF_TOKEN", "HF_ENDPOINT", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TLLM_HOME", str(root))
    return root
