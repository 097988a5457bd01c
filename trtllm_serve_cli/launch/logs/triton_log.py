"""What Triton's log says went wrong, in a few lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# glog's prefix: level, date, time, process, place; or as with --log-format=ISO8601.
TRITON_PREFIX = re.compile(
    r"^(?:(?P<level>[IWEF])\d{4} [\d:.]+|\d{4}-\d\d-\d\dT[\d:.]+Z (?P<iso_level>[IWEF]))"
    r" +(?P<pid>\d+) (?P<place>[^\]\s]+)\]\s*"
)
# What our models and workers write, as runtime/log.py has it.
TLLM_PREFIX = re.compile(r"^(?P<level>[IWE]) (?P<model>[^\s\]]+)\] ")
_FAILED = re.compile(r"failed to load '([^']+)' version \d+: (.*)")
_LOADED = re.compile(r"successfully loaded '([^']+)'")
# It prints all its options when it does not understand one, before or after saying which.
_USAGE = "Usage: tritonserver [options]"
_PROGRAM = re.compile(r"^\S*tritonserver: ")
# Words of a line that is worth showing when no model says why it failed.
_CAUSE_WORDS = (
    "tritonserver: ",
    "error while loading shared libraries",
    "Address already in use",
    "ModuleNotFoundError",
    "Traceback",
    "failed to",
    "Failed to",
    "Error:",
    "mpirun noticed",
    "mpirun was unable",
    "There are not enough slots",
    "All nodes which are allocated for this job",
)
# What a machine without a GPU always logs, and what means nothing here.
_NOISE = (
    "CudaDriverHelper",
    "DCGM",
    "NVML",
    "pinned system memory",
    # What others say better.
    "creating server: Internal - failed to load all models",
    "No address added out of total",
)


def explain_log(lines: Iterable[str], *, limit: int = 6) -> list[str]:
    """The last lines that say why a server did not start, without Triton's prefixes."""
    causes: list[str] = []
    candidates: list[str] = []
    lines = list(lines)
    if _USAGE in lines:
        return [_tidy(_PROGRAM.sub("", line)) for line in lines if _is_option_error(line)]
    for line in lines:
        level, text = _split(line)
        if any(noise in text for noise in _NOISE):
            continue
        if failed := _FAILED.search(text):
            causes.append(f"{failed[1]}: {_tidy(failed[2])}")
        elif level in ("E", "F") or any(word in text for word in _CAUSE_WORDS):
            candidates.append(_tidy(text))
    chosen = causes or filter(None, candidates)
    return list(dict.fromkeys(chosen))[-limit:]


def find_loading(lines: Iterable[str], expected: Sequence[str]) -> list[str]:
    """The models of `expected` that have not been loaded yet, in its order."""
    loaded = {found[1] for line in lines if (found := _LOADED.search(line))}
    return [model for model in expected if model not in loaded]


def _is_option_error(line: str) -> bool:
    """Whether a line beside Triton's list of options says what is wrong with those it got."""
    return bool(line) and line != _USAGE and not line[0].isspace() and not line.endswith(":")


def _split(line: str) -> tuple[str, str]:
    if found := TRITON_PREFIX.match(line):
        return found["level"] or found["iso_level"], line[found.end() :]
    if found := TLLM_PREFIX.match(line):
        return found["level"], f"{found['model']}: {line[found.end() :]}"
    return "", line


def _tidy(text: str) -> str:
    text = text.strip().strip('" ').replace("\\n", "\n")
    # A traceback's last line says what the rest leads to.
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    first, last = lines[0], lines[-1]
    is_complete = len(lines) < 2 or last.startswith(("At:", "  "))
    return (first if is_complete else f"{first} … {last.strip()}")[:400]
