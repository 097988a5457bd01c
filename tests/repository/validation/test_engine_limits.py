"""Limits of engines on disk."""

from __future__ import annotations

import json
from pathlib import Path

from tests.samples.tensorrt_engines import write_legacy_engine
from trtllm_serve_cli.repository.validation.engine_limits import EngineLimits, read_limits


def test_limits_of_an_engine_of_build_py(tmp_path: Path) -> None:
    assert read_limits(write_legacy_engine(tmp_path)) == EngineLimits(
        tmp_path / "config.json",
        vocab_size=32000,
        max_batch_size=8,
        max_beam_width=1,
        max_seq_len=2560,
        world_size=2,
        has_paged_context_fmha=False,
    )


def test_limits_of_an_incomplete_file_are_unknown(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"builder_config": {"name": "llama"}}))
    assert read_limits(tmp_path) is None
