"""Compare plans with the commands of a guide."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.build.tensorrt.samples import check_step, options_in, plan
from trtllm_serve_cli.sizing.shape import ModelShape

_FOLDERS = {
    "--model_dir", "--output_dir", "--checkpoint_dir", "--output_timing_cache", "--timing_cache",
    "--in-file", "--out-dir",
}  # fmt: skip


@dataclass(frozen=True)
class Guide:
    """The commands of a guide; `plan_differs` are the plan's values, `None` for a missing flag."""

    source: str
    model: str | ModelShape
    version: str
    options: dict[str, Any]
    checkpoint: dict[str, str] | None
    engine: dict[str, str]
    script: str = "/examples/llama/convert_checkpoint.py"
    plan_differs: dict[str, str | None] = field(default_factory=dict)


def compare(guide: Guide) -> dict[str, str | None]:
    """Return the plan's values of the flags in which the plan differs from the guide."""
    steps = plan(guide.model, guide.version, **guide.options)
    assert steps[0].command[1] == guide.script
    planned = [_without_folders(options_in(step.command)) for step in steps]
    documented = [each for each in (guide.checkpoint, guide.engine) if each is not None]
    return {
        flag: planned_options.get(flag)
        for planned_options, guide_options in zip(planned, documented, strict=True)
        for flag in {*planned_options, *guide_options}
        if planned_options.get(flag) != guide_options.get(flag)
    }


def check_guide(guide: Guide) -> None:
    """Raise `ParseError` if the programs of the guide's version reject the plan.

    Raise `BadInput` if tllm cannot plan the engine.
    """
    for step in plan(guide.model, guide.version, **guide.options):
        check_step(step, guide.version)


def _without_folders(options: dict[str, str]) -> dict[str, str]:
    return {flag: values for flag, values in options.items() if flag not in _FOLDERS}
