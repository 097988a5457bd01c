"""Convert the steps of `tllm run` to the equivalent `tllm` commands."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trtllm_serve_cli.option_fields import OptionField


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The steps of `tllm run` for the model `name`.

    Each step's options are the arguments of the equivalent command.
    """

    name: str
    prompt: str | None
    imports: bool
    starts: bool
    import_options: Sequence[str] = field(default=())
    start_options: Sequence[str] = field(default=())
    infer_options: Sequence[str] = field(default=())

    def describe(self) -> str:
        """Return the equivalent commands, one per line.

        If `prompt` is None, the last command contains PROMPT as a placeholder.
        """
        steps = [
            (self.imports, ("import", "-m", self.name, *self.import_options)),
            (self.starts, ("start", "-m", self.name, *self.start_options)),
            (True, ("infer", "-m", self.name, *self.infer_options, self.prompt or "PROMPT")),
        ]
        return "\n".join(shlex.join(("tllm", *words)) for is_needed, words in steps if is_needed)


def list_words(fields: Sequence[OptionField], values: Mapping[str, Any]) -> list[str]:
    """Return the options in `values` as command-line arguments."""
    words = []
    for each in fields:
        if each.name in values:
            words += [each.flags[-1], str(values[each.name])]
    return words
