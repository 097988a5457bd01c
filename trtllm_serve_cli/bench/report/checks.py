"""A result held against the reference file of upstream's `--check-perf-json`.

The file maps a key to figures under the names of upstream's CSV file; a figure passes when
|measured - reference| <= atol + rtol * |reference|, NumPy's rule. Source: `check_performance` in
`tools/inflight_batcher_llm/benchmark_core_model.py` of tensorrtllm_backend@c2e65b8.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtllm_serve_cli.errors import BadInput, CheckFailed


@dataclass(frozen=True, slots=True)
class Reference:
    """Figures to be met, and how nearly."""

    file: Path
    key: str
    figures: Mapping[str, float]
    atol: float = 50.0
    rtol: float = 0.05


def read_reference(file: Path, key: str, atol: float, rtol: float) -> Reference:
    """The figures under `key`. Raises `BadInput`."""
    try:
        loaded = json.loads(file.read_text(encoding="utf-8"))
        figures = {name: float(value) for name, value in loaded[key].items()}
    except OSError as error:
        raise _refuse(file, error.strerror or str(error)) from error
    except KeyError as error:
        raise _refuse(file, f"it has no entry {key!r}, only {', '.join(loaded)}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise _refuse(file, str(error)) from error
    if not figures:
        raise _refuse(file, f"its entry {key!r} is empty")
    return Reference(file, key, figures, atol, rtol)


def check(measured: Mapping[str, float], reference: Reference) -> None:
    """Raises `CheckFailed` with every figure that is missing or too far off."""
    wrong = []
    for name, expected in reference.figures.items():
        value = measured.get(name)
        if value is None:
            wrong.append(f"{name!r} was not measured")
        elif not abs(value - expected) <= reference.atol + reference.rtol * abs(expected):
            wrong.append(f"{name!r} is {value:.2f}, not {expected:.2f}")
    if wrong:
        raise CheckFailed(
            f"The figures are not those of {reference.key!r} in {reference.file}.",
            why=f"{'; '.join(wrong)} (allowed: {reference.atol:g} + {reference.rtol:g} of it)",
            next_step="run again, to tell noise from change; else find what changed, or put the "
            "new figures into the file",
        )


def _refuse(file: Path, why: str) -> BadInput:
    return BadInput(
        f"The reference figures in {file} cannot be used.",
        why=why,
        next_step='its form is {"KEY": {"Requests/Sec": 100.0}}, with --check-perf-key KEY',
    )
