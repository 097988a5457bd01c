"""Adapt text model requests to the TensorRT-LLM version that `tensorrt_llm` uses.

In older versions, the C++ backend lacks some of the current inputs and outputs. The text models
process the missing inputs themselves and add the missing outputs. Other modules of the runtime
support only the inputs and outputs of the newest version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ..engine import InvalidRequest
from ..triton.core_inputs import COUNTS, EXCLUDE_INPUT, OWN_INPUTS
from ..triton.parameters import Parameters
from ..triton.tensors import Array

Version = tuple[int, int]

# The first version that accepts several rows in a request. Older versions reject the request
# ("Invalid size for tensor").
_FIRST_WITH_ROWS = (0, 12)
# The first version with the `min_tokens` input, which older versions call `min_length`.
_FIRST_WITH_MIN_TOKENS = (0, 20)


@dataclass(frozen=True, slots=True)
class CoreAdapter:
    """An adapter for the TensorRT-LLM version that `tensorrt_llm` uses.

    `version` is None for tllm's Python model, which has all inputs and outputs. `excludes_input` is
    true if `tensorrt_llm` excludes the prompt from its responses by default.
    """

    version: Version | None
    excludes_input: bool

    @classmethod
    def of(cls, parameters: Parameters) -> CoreAdapter:
        """Create an adapter from a text model's parameters."""
        match = re.match(r"(\d+)\.(\d+)", parameters.text("tensorrt_llm_version", ""))
        version = (int(match[1]), int(match[2])) if match else None
        return cls(version, parameters.flag("exclude_input_in_output", False))

    @property
    def min_tokens_name(self) -> str:
        """The name of the input that sets the minimum number of tokens."""
        is_old = self.version is not None and self.version < _FIRST_WITH_MIN_TOKENS
        return "min_length" if is_old else "min_tokens"

    def adapt(self, inputs: Mapping[str, Array]) -> CoreRequest:
        """Return the request to send to `tensorrt_llm` for `inputs`.

        Raise `InvalidRequest` if `inputs` contains several prompts, but `tensorrt_llm` uses a
        TensorRT-LLM version that accepts only one prompt per request.
        """
        version = self.version or (9999, 0)
        num_rows = len(inputs["input_ids"])
        if num_rows > 1 and version < _FIRST_WITH_ROWS:
            raise InvalidRequest(
                f"TensorRT-LLM {version[0]}.{version[1]} accepts one prompt per request, but the "
                f"request has {num_rows}; send one request per prompt, or build the engine with "
                "TensorRT-LLM 0.12 or later"
            )
        omitted = {name for name, first in OWN_INPUTS.items() if version < first}
        excludes_input = _read_flag(inputs, EXCLUDE_INPUT, default=self.excludes_input)
        core_excludes_input = self.excludes_input if EXCLUDE_INPUT in omitted else excludes_input
        # Streamed responses never contain the prompt, regardless of this setting.
        has_prompt = not core_excludes_input and not _read_flag(inputs, "streaming", default=False)
        return CoreRequest(
            inputs={name: array for name, array in inputs.items() if name not in omitted},
            prompts=_read_prompts(inputs),
            has_prompt=has_prompt,
            removes_prompt=has_prompt and excludes_input,
            counts=tuple(
                count
                for count in COUNTS
                if f"return_{count}" in omitted
                and _read_flag(inputs, f"return_{count}", default=False)
            ),
        )

    def list_outputs(self, outputs: Iterable[str]) -> list[str]:
        """Return the names in `outputs` that are also outputs of `tensorrt_llm`."""
        has_counts = self.version is None or self.version >= OWN_INPUTS["return_num_input_tokens"]
        return [name for name in outputs if has_counts or name not in COUNTS]


@dataclass(frozen=True, slots=True)
class CoreRequest:
    """A request to `tensorrt_llm`, with the data needed to complete its responses.

    - `prompts`: the prompt's token ids for each row.
    - `has_prompt`: true if the responses of `tensorrt_llm` begin with the prompt.
    - `removes_prompt`: true if `complete` removes the prompt.
    - `counts`: the names of the token counts that `complete` adds to each response.
    """

    inputs: dict[str, Array]
    prompts: list[Array]
    has_prompt: bool
    removes_prompt: bool
    counts: tuple[str, ...]

    def complete(self, outputs: dict[str, Array]) -> dict[str, Array]:
        """Return a response's outputs as the newest version of TensorRT-LLM would return them.

        The backend returns `batch_index` only if the request has several rows, and `sequence_index`
        only if the request has several sequences. A response without these outputs is for the first
        row and sequence.
        """
        completed = dict(outputs)
        for index in ("batch_index", "sequence_index"):
            completed.setdefault(index, np.zeros((1, 1), dtype=np.int32))
        prompt = self.prompts[int(completed["batch_index"][0, 0])]
        new_lengths = completed["sequence_length"] - (len(prompt) if self.has_prompt else 0)
        if self.removes_prompt:
            completed["output_ids"] = completed["output_ids"][..., len(prompt) :]
            completed["sequence_length"] = new_lengths
        if "num_input_tokens" in self.counts:
            completed["num_input_tokens"] = _as_tensor(len(prompt))
        if "num_output_tokens" in self.counts:
            completed["num_output_tokens"] = _as_tensor(int(new_lengths.sum()))
        return completed


def _read_prompts(inputs: Mapping[str, Array]) -> list[Array]:
    lengths = inputs["input_lengths"].reshape(-1)
    return [ids[:length] for ids, length in zip(inputs["input_ids"], lengths, strict=True)]


def _read_flag(inputs: Mapping[str, Array], name: str, *, default: bool) -> bool:
    return bool(np.any(inputs[name])) if name in inputs else default


def _as_tensor(value: int) -> Array:
    return np.array([[value]], dtype=np.int32)
