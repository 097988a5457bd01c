"""The group of arguments with its own class."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class StructuredOutputsConfig:
    backend: str = "auto"
