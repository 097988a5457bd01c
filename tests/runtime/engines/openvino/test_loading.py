"""Test the options with which OpenVINO GenAI's pipeline is loaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("openvino_genai", reason="pip install 'trtllm-serve-cli[embedded]'")

import openvino_genai

from trtllm_serve_cli.runtime.engines.openvino import threads
from trtllm_serve_cli.runtime.engines.openvino.loading import load_pipeline


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the folders of an engine and a draft model, which the stand-in does not read."""
    for name in ("engine", "draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "openvino_model.xml").touch()

    def load(model: Path, scheduler: Any, device: str, properties: dict[str, Any]) -> Any:
        return SimpleNamespace(scheduler=scheduler, properties=properties)

    monkeypatch.setattr(openvino_genai, "ContinuousBatchingPipeline", load)
    monkeypatch.setattr(openvino_genai, "draft_model", lambda model, device: model.name)
    return tmp_path


@pytest.fixture(autouse=True)
def no_cpu_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "read_cpu_limit", lambda: None)


@pytest.mark.parametrize(
    ("num_draft_tokens", "draft", "properties", "reuses_blocks"),
    [
        (0, "", {}, True),
        (0, "draft", {}, True),
        (3, "", {"prompt_lookup": True}, True),
        (3, "draft", {"draft_model": "draft"}, False),
    ],
    ids=["off", "off with a draft model", "prompt lookup", "draft model"],
)
def test_drafts_only_if_there_are_draft_tokens(
    models: Path,
    num_draft_tokens: int,
    draft: str,
    properties: dict[str, Any],
    reuses_blocks: bool,
) -> None:
    config = {
        "max_batch_size": 16,
        "max_num_tokens": 256,
        "enable_kv_cache_reuse": True,
        "num_threads": 0,
        "num_draft_tokens": num_draft_tokens,
        "draft_model_dir": draft and str(models / draft),
    }
    pipeline = load_pipeline(models / "engine", config, 8, None)
    assert pipeline.properties == properties
    assert pipeline.scheduler.enable_prefix_caching is reuses_blocks
