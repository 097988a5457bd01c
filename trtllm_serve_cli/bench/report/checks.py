"""Check a result against a reference file, as tensorrtllm_backend's `--check-perf-json` does.

The reference file is a JSON object. Each key (`--check-perf-key`) maps to an object of expected
values, keyed by the CSV column names of tensorrtllm_backend's benchmark. A measured value passes if
|measured - reference| <= atol + rtol * |reference|, as in `numpy.isclose`.

Source: `check_performance` in `tools/inflight_batcher_llm/benchmark_core_model.py` of
tensorrtllm_backend@c2e65b8.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtllm_serve_cli.errors import BadInput, CheckFailed

_ATOL, _RTOL = 50.0, 0.05


@dataclass(frozen=True, slots=True)
class Reference:
    """The expected values for one key of a reference file, and the tolerances.

    `figures` maps metric names to expected values. `atol` is the absolute tolerance, and `rtol` is
    the tolerance relative to the expected value.
    """

    file: Path
    key: str
    figures: Mapping[str, float]
    atol: float = _ATOL
    rtol: float = _RTOL


def read_reference(
    file: Path, key: str, atol: float | None = None, rtol: float | None = None
) -> Reference:
    """Read the expected values for `key` from `file`.

    The default is used for a tolerance that is `None`. Raise `BadInput` if the file cannot be read,
    is invalid, or does not contain values for the key.
    """
    try:
        loaded = json.loads(file.read_text(encoding="utf-8"))
        figures = {name: float(value) for name, value in loaded[key].items()}
    except OSError as error:
        raise _refuse(file, error.strerror or str(error)) from error
    except KeyError as error:
        raise _refuse(
            file, f"the file does not contain the key {key!r} (available keys: {', '.join(loaded)})"
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _refuse(file, f"the file is not valid JSON: {error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise _refuse(
            file, "the file must map each key to an object with a number for each metric"
        ) from error
    if not figures:
        raise _refuse(file, f"the file does not contain values for the key {key!r}")
    return Reference(
        file, key, figures, _ATOL if atol is None else atol, _RTOL if rtol is None else rtol
    )


def check(measured: Mapping[str, float], reference: Reference) -> None:
    """Raise `CheckFailed` if a metric in the reference was not measured or is out of tolerance."""
    wrong = []
    for name, expected in reference.figures.items():
        value = measured.get(name)
        if value is None:
            wrong.append(f"{name!r} was not measured")
        elif not abs(value - expected) <= reference.atol + reference.rtol * abs(expected):
            wrong.append(f"{name!r} is {value:.2f} instead of {expected:.2f}")
    if wrong:
        raise CheckFailed(
            f"The result does not match the reference {reference.key!r} in {reference.file}.",
            why=f"{'; '.join(wrong)} "
            f"(the tolerance is {reference.atol:g} + {reference.rtol:g} x reference)",
            next_step="run the benchmark again to rule out noise, then fix the cause or update the "
            "reference file",
        )


def _refuse(file: Path, why: str) -> BadInput:
    return BadInput(
        f"The reference file {file} cannot be used.",
        why=why,
        next_step=(
            'pass a JSON file in the format {"KEY": {"Requests/Sec": 100.0}}, and select one of '
            "its keys with `--check-perf-key KEY`"
        ),
    )
