"""Define the findings that tllm reports when it validates a model repository."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trtllm_serve_cli.repository.model.model_repository import CONFIG, OpenRepository
from trtllm_serve_cli.repository.pbtxt import PbtxtError, line_of


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem in a file or folder of a model repository.

    A problem with severity "error" prevents the server from starting or from responding correctly.
    `line` is 1-based, or None if the finding does not refer to a line. `what` describes the
    problem. `next_step` explains how to fix the problem, or is empty.
    """

    severity: Literal["error", "warning"]
    path: Path
    line: int | None
    what: str
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """A repository that is being validated.

    `configs` maps model names to parsed `config.pbtxt` files. Models whose `config.pbtxt` cannot be
    parsed are omitted. `validate_repository` replaces unquoted `${name}` variables with
    placeholders before it parses the files, because protobuf cannot parse the variables.
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
        """Return a finding about the model's `config.pbtxt`.

        If the field path `place` is set, the finding refers to the line of that field.
        """
        line = _line(self.repository.texts[model], place) if place else None
        return Finding(severity, self.repository.path / model / CONFIG, line, what, next_step)

    @property
    def set_command(self) -> str:
        """A `tllm set` command for this repository. Callers append `NAME=VALUE`."""
        return f"tllm set {self.repository.target}"


def type_name(data_type: int) -> str:
    """Return Triton's name for a data type, for example `TYPE_INT32`."""
    from tritonclient.grpc import model_config_pb2

    return str(model_config_pb2.DataType.Name(data_type))


def _line(text: str, place: str) -> int | None:
    try:
        return line_of(text, place)
    except PbtxtError:
        return None
