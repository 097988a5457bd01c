"""The function that upstream's Triton model imports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class SpeculativeConfig:
    decoding_type: str
    rest: dict[str, Any]


def update_llm_args_with_extra_dict(
    llm_args: dict[str, Any], llm_args_dict: dict[str, Any], extra_llm_api_options: None = None
) -> dict[str, Any]:
    """Modify the arguments in place, like the original."""
    if speculative := llm_args_dict.get("speculative_config"):
        decoding_type = speculative.pop("decoding_type")
        llm_args_dict["speculative_config"] = SpeculativeConfig(decoding_type, speculative)
    return llm_args | llm_args_dict
