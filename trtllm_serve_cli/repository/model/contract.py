"""Load each model's input and output tensor definitions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from trtllm_serve_cli.runtime.triton.core_inputs import CORE_NAMES, COUNTS, OWN_INPUTS

_FIRST = "0.5"
_LAST = (9999, 0)


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output tensor of a model.

    `type` is Triton's name for the data type. `dims` and `reshape` exclude the batch dimension. If
    `ragged` is set, requests in a batch may have different shapes for this tensor.
    """

    name: str
    type: str
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    optional: bool = False
    ragged: bool = False


@dataclass(frozen=True, slots=True)
class TensorForm:
    """The definition of a tensor in a range of TensorRT-LLM versions.

    A tensor has several definitions if, for example, its type changed between versions.

    - `since`: first version with this definition. None if the first version is unknown or is the
      oldest supported version.
    - `until`: last version with this definition, or None if the newest version uses the definition.
    """

    tensor: Tensor
    since: str | None = None
    until: str | None = None

    def is_in(self, version: str) -> bool:
        """Return whether this definition applies to TensorRT-LLM `version`."""
        return is_in_versions(version, self.since, self.until)


@dataclass(frozen=True, slots=True)
class Contract:
    """The input and output tensors of a model."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


# The input of the text models that marks a stop request. NVIDIA's text models do not have it, only
# `tensorrt_llm` does.
STOP = Tensor("stop", "TYPE_BOOL", (1,), optional=True)


@cache
def load_forms() -> dict[str, dict[str, tuple[TensorForm, ...]]]:
    """Return all tensor definitions, keyed by model name and by "inputs" or "outputs".

    Model names in the gpt layout have the prefix `gpt/`.
    """
    import yaml

    folder = resources.files("trtllm_serve_cli.repository.model")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    models: dict[str, Any] = {}
    for name in ("contract.yaml", "contract_gpt.yaml"):
        models |= yaml.load(folder.joinpath(name).read_text(encoding="utf-8"), Loader=loader)
    return {
        model: {side: tuple(map(_parse_form, sides[side])) for side in ("inputs", "outputs")}
        for model, sides in models.items()
    }


@cache
def load_contracts(version: str = "") -> dict[str, Contract]:
    """Return each model's tensors in a TensorRT-LLM version, keyed by model name.

    The patch level of `version` is ignored. If `version` is empty or cannot be parsed, the newest
    version is used.
    """
    return {
        model: Contract(
            **{
                side: tuple(each.tensor for each in forms if each.is_in(version))
                for side, forms in sides.items()
            }
        )
        for model, sides in load_forms().items()
    }


@cache
def load_text_contract(role: str, version: str = "") -> Contract:
    """Return a text model's tensors.

    The result contains the tensors of NVIDIA's model and the tensors that tllm adds. tllm adds
    `STOP`, and each input of the newest text model that `tensorrt_llm` has in this TensorRT-LLM
    version or that the text model itself processes. The added outputs are token counts.
    """
    contracts, newest = load_contracts(version), load_contracts()[role]
    supported = {each.name for each in contracts["tensorrt_llm"].inputs} | OWN_INPUTS.keys()
    return Contract(
        inputs=_add(
            contracts[role].inputs,
            (
                *(
                    each
                    for each in newest.inputs
                    if CORE_NAMES.get(each.name, each.name) in supported
                ),
                STOP,
            ),
        ),
        outputs=_add(
            contracts[role].outputs, (each for each in newest.outputs if each.name in COUNTS)
        ),
    )


def _add(tensors: tuple[Tensor, ...], others: Iterable[Tensor]) -> tuple[Tensor, ...]:
    names = {each.name for each in tensors}
    return (*tensors, *(each for each in others if each.name not in names))


def is_in_versions(version: str, since: str | None, until: str | None) -> bool:
    """Return whether `version` is in the range from `since` to `until`, inclusive.

    Patch levels are ignored. If `since` or `until` is None, the range has no limit at that end.
    """
    minor = minor_version(version)
    return minor_version(since or _FIRST) <= minor and (
        until is None or minor <= minor_version(until)
    )


def minor_version(version: str) -> tuple[int, int]:
    """Return the major and minor version numbers.

    Return `_LAST`, which is higher than all versions, if `version` cannot be parsed.
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else _LAST


def find_first_version(model: str, tensor: str) -> str | None:
    """Return the first TensorRT-LLM version in which the model has the input `tensor`.

    Return None if the model does not have this input in any version.
    """
    forms = [each for each in load_forms()[model]["inputs"] if each.tensor.name == tensor]
    return min((each.since or _FIRST for each in forms), key=minor_version, default=None)


def _parse_form(entry: dict[str, Any]) -> TensorForm:
    tensor = Tensor(
        name=entry["name"],
        type=entry["type"],
        dims=tuple(entry["dims"]),
        reshape=tuple(entry["reshape"]) if "reshape" in entry else None,
        optional=entry.get("optional", False),
        ragged=entry.get("ragged", False),
    )
    return TensorForm(tensor, entry.get("since"), entry.get("until"))
