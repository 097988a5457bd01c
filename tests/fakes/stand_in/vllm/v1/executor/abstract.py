"""What runs the model: in one process, or in one per GPU."""

from __future__ import annotations

from typing import Any


class Executor:
    @staticmethod
    def get_class(config: Any) -> type[Executor]:
        return Executor
