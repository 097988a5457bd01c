"""Findings of the validation of a model repository."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trtllm_serve_cli.repository.model.model_repository import CONFIG, OpenRepository
from trtllm_serve_cli.repository.pbtxt import PbtxtError, line_of


@dataclass(frozen=True, slots=True)
class Finding:
    """A validation result: an error (the server would not start or respond) or a warning."""

    severity: Literal["error", "warning"]
    path: Path
    line: int | None
    what: str
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """A repository and its parsed configurations, without those that cannot be parsed.

    Placeholders replace unfilled variables, so that the other values can be checked.
    """

    repository: OpenRepository
    configs: dict[str, Any]

    def finding(
        self,
        severity: Literal["error", "warning"],
        model: str,
        what: str,
        next_step: str = "",
        *,
        place: str = "",
    ) -> Finding:
        """Return a finding about the value at `place` in the model's `config.pbtxt`."""
        line = _line(self.repository.texts[model], place) if place else None
        return Finding(severity, self.repository.path / model / CONFIG, line, what, next_step)

    @property
    def set_command(self) -> str:
        """The start of a command that changes this repository."""
        return f"tllm set {self.repository.target}"


def type_name(data_type: int) -> str:
    """Return the name of one of Triton's tensor types."""
    from tritonclient.grpc import model_config_pb2

    return str(model_config_pb2.DataType.Name(data_type))


def _line(text: str, place: str) -> int | None:
    try:
        return line_of(text, place)
    except PbtxtError:
        return None
