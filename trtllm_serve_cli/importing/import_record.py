"""Record the stage durations of an import in the model repository."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtllm_serve_cli.paths import write_text

RECORD_FILE = "import.json"


@dataclass(frozen=True, slots=True)
class ImportRecord:
    """The record of a model's last import.

    `ended_at` is in seconds since the epoch. `stages_s` maps stage names to durations in seconds.
    """

    ended_at: float
    stages_s: Mapping[str, float]


def record_import(repository: Path, record: ImportRecord) -> None:
    """Write the record of the import that created `repository`."""
    # Ignore errors such as a full disk, because the model works without the record.
    with contextlib.suppress(OSError):
        write_text(repository / RECORD_FILE, json.dumps(dataclasses.asdict(record), indent=2))


def find_import(repository: Path) -> ImportRecord | None:
    """Return the import record of `repository`, or None if the record is missing or invalid."""
    try:
        record = json.loads((repository / RECORD_FILE).read_text(encoding="utf-8"))
        stages_s = {stage: float(each) for stage, each in record["stages_s"].items()}
        return ImportRecord(float(record["ended_at"]), stages_s)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
