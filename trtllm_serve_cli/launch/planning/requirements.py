"""Check that this machine has the software and the GPUs that a plan requires.

A dry run collects the `MissingPart` errors instead of raising them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from trtllm_serve_cli.errors import MissingPart

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Requirements:
    """The software and GPUs that a plan requires on this machine.

    If software or a GPU is missing, a dry run adds the error to `missing` and continues.
    """

    is_dry_run: bool = False
    missing: list[MissingPart] = field(default_factory=list)

    def find(self, find: Callable[[], _Found], assumed: _Found) -> _Found:
        """Return the result of `find`.

        If `find` raises `MissingPart` in a dry run, add the error to `missing` and return
        `assumed`. In all other cases, errors propagate.
        """
        try:
            return find()
        except MissingPart as error:
            if not self.is_dry_run:
                raise
            self.missing.append(error)
            return assumed

    def describe(self) -> tuple[str, ...]:
        """Return a message with the next step for each error in `missing`."""
        return tuple(f"{each.what} To fix this, {each.next_step}." for each in self.missing)
