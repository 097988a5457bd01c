"""The executor of the model: one process, or one process per GPU."""

from __future__ import annotations

from typing import Any


class Executor:
    @staticmethod
    def get_class(config: Any) -> type[Executor]:
        return Executor
