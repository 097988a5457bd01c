"""Log lines in which processes report the stages of their starts."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from trtllm_serve_cli.launch.logs.start_lines import ReportedStart, read_start_lines
from trtllm_serve_cli.runtime.log import MODEL_NAME, render_json, render_text
from trtllm_serve_cli.runtime.stages import stage_fields

MESSAGE = "it is ready"
FIELDS: dict[str, Any] = stage_fields(0.25, {"load_engine": 1.5})
NOW = datetime(1970, 1, 1, 0, 0, 2, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("line", "model"),
    [
        pytest.param(render_text("I", MESSAGE, FIELDS), MODEL_NAME, id="text"),
        pytest.param(render_json("I", MESSAGE, FIELDS, NOW), MODEL_NAME, id="JSON"),
        pytest.param(
            f"1970-01-01T00:00:02.000Z {MESSAGE} model=a.b started_at={FIELDS['started_at']} "
            "load_engine_s=1.5",
            "a.b",
            id="gateway",
        ),
    ],
)
def test_stages_in_a_line(line: str, model: str) -> None:
    start = ReportedStart(model, 0.25, {"load engine": 1.5})
    assert list(read_start_lines([line], MESSAGE)) == [start]
    assert start.ended_at == 1.75


@pytest.mark.parametrize(
    "line",
    [
        "another line",
        MESSAGE,
        f"I m] {MESSAGE} started_at=now",
        f"I m] {MESSAGE} started_at=1970-01-01T00:00:02.000Z load_s=long",
        f'{{"message": "{MESSAGE}", "started_at": 1}}',
        f"{{{MESSAGE}",
    ],
)
def test_other_lines_are_skipped(line: str) -> None:
    assert list(read_start_lines([line], MESSAGE)) == []
