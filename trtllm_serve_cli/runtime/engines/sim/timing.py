"""Define a simulated engine by its scheduler limits and step durations.

The definition is stored in `simulation.json` in the engine folder. `tllm bench calibrate` writes
files in this format.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

SIMULATION_FILE = "simulation.json"
SCHEMA = 1
SchedulerPolicy = Literal["guaranteed_no_evict", "max_utilization"]
POLICIES: tuple[SchedulerPolicy, ...] = ("guaranteed_no_evict", "max_utilization")


@dataclass(frozen=True, slots=True)
class StepTiming:
    """The coefficients of the formula for the duration of a step:

        step_s + prompt_token_s * p + prompt_pair_s * q + sequence_s * n + kv_token_s * k

    - p: the number of prompt tokens that the step computes
    - q: the number of attention pairs, each a computed prompt token and an earlier token that it
      attends to
    - n: the number of sequences in the decode phase
    - k: the number of tokens in the KV cache that these sequences attend to

    The coefficients are in seconds. `jitter` is the coefficient of variation of the
    gamma-distributed duration, whose mean is the formula's value. 0 disables the jitter.
    `request_s` is the server and network overhead per request, in seconds. Only the virtual clock
    (bench/simulate) adds this overhead, because the overhead is real if Triton serves the simulated
    engine.
    """

    step_s: float
    prompt_token_s: float = 0.0
    prompt_pair_s: float = 0.0
    sequence_s: float = 0.0
    kv_token_s: float = 0.0
    jitter: float = 0.0
    request_s: float = 0.0

    def duration_s(self, work: StepWork) -> float:
        """Return the duration of a step that does `work`, without jitter."""
        return (
            self.step_s
            + self.prompt_token_s * work.prompt_tokens
            + self.prompt_pair_s * work.prompt_pairs
            + self.sequence_s * work.sequences
            + self.kv_token_s * work.kv_tokens
        )


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work that a step does. The fields are p, q, n and k in the `StepTiming` formula."""

    prompt_tokens: int = 0
    prompt_pairs: int = 0
    sequences: int = 0
    kv_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The limits of the simulated scheduler.

    The fields are named after the parameters of TensorRT-LLM and its Triton backend.
    """

    max_batch_size: int = 256
    max_num_tokens: int = 8192
    max_tokens_in_paged_kv_cache: int = 1 << 20
    tokens_per_block: int = 32
    batch_scheduler_policy: SchedulerPolicy = "guaranteed_no_evict"
    enable_chunked_context: bool = False
    enable_kv_cache_reuse: bool = True

    @property
    def num_blocks(self) -> int:
        """The number of blocks in the KV cache."""
        return self.max_tokens_in_paged_kv_cache // self.tokens_per_block


@dataclass(frozen=True, slots=True)
class Simulation:
    """A simulated engine, defined by its step durations and scheduler limits.

    `origin` describes the source of the timing, for example a measurement.
    """

    timing: StepTiming
    limits: SchedulerLimits = field(default_factory=SchedulerLimits)
    origin: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the content of `simulation.json` as a dictionary."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}


def parse_simulation(text: str) -> Simulation:
    """Parse the text of `simulation.json`.

    Raise `ValueError` if the text is not valid JSON. If a field is missing, unknown or invalid,
    raise a `ValueError` that names the field.
    """
    fields = json.loads(text)
    if not isinstance(fields, dict) or not isinstance(fields.get("timing"), dict):
        raise ValueError(
            "timing is missing or is not a JSON object; set timing to an object that contains at "
            "least the step_s field"
        )
    if fields.get("schema", SCHEMA) != SCHEMA:
        raise ValueError(f"schema is {fields['schema']}, but only schema {SCHEMA} is supported")
    _reject_unknown("", fields, ("schema", "timing", "limits", "origin"))
    limits = fields.get("limits", {})
    if not isinstance(limits, dict):
        raise ValueError("limits is not a JSON object; set limits to an object, or remove it")
    return Simulation(
        _parse_timing(fields["timing"]),
        parse_limits(limits),
        str(fields.get("origin", "")),
    )


def parse_limits(fields: Mapping[str, Any]) -> SchedulerLimits:
    """Return the default limits, overridden by `fields`.

    Raise `ValueError` if a field is unknown or invalid.
    """
    defaults = SchedulerLimits()
    _reject_unknown("limits.", fields, SchedulerLimits.__slots__)
    for name, value in fields.items():
        expected = type(getattr(defaults, name))
        if type(value) is not expected:
            raise ValueError(f"limits.{name} must be of type {expected.__name__}, but is {value!r}")
        if expected is int and value < 1:
            raise ValueError(f"limits.{name} must be at least 1, but is {value}")
    limits = dataclasses.replace(defaults, **fields)
    if limits.batch_scheduler_policy not in POLICIES:
        raise ValueError(
            f"limits.batch_scheduler_policy must be {' or '.join(POLICIES)}, but is "
            f"{limits.batch_scheduler_policy!r}"
        )
    if not limits.num_blocks:
        raise ValueError(
            "limits.max_tokens_in_paged_kv_cache must be at least limits.tokens_per_block "
            f"({limits.tokens_per_block}), but is {limits.max_tokens_in_paged_kv_cache}"
        )
    return limits


def _parse_timing(fields: Mapping[str, Any]) -> StepTiming:
    _reject_unknown("timing.", fields, StepTiming.__slots__)
    for name, value in fields.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"timing.{name} must be a number, but is {value!r}")
        if not 0 <= value < math.inf:
            raise ValueError(f"timing.{name} must be finite and not negative, but is {value:g}")
    if not fields.get("step_s"):
        raise ValueError("timing.step_s is missing or 0; set it to a number greater than 0")
    return StepTiming(**{name: float(value) for name, value in fields.items()})


def _reject_unknown(prefix: str, fields: Mapping[str, Any], known: tuple[str, ...]) -> None:
    if unknown := sorted(set(fields) - set(known)):
        raise ValueError(
            f"{prefix}{unknown[0]} is not a known field; the known fields are {', '.join(known)}"
        )
