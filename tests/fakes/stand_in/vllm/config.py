"""The group of arguments that has a class of its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class StructuredOutputsConfig:
    backend: str = "auto"
