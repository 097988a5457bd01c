"""Extract the causes of a failure from a server's log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# Triton's log prefix has glog's format (level, date, time, process, source line), or starts with a
# time in ISO 8601 format.
TRITON_PREFIX = re.compile(
    r"^(?:(?P<level>[IWEF])\d{4} [\d:.]+|\d{4}-\d\d-\d\dT[\d:.]+Z (?P<iso_level>[IWEF]))"
    r" +(?P<pid>\d+) (?P<place>[^\]\s]+)\]\s*"
)
# tllm's models, engine workers and supervisor write this log prefix (see runtime/log.py).
TLLM_PREFIX = re.compile(r"^(?P<level>[IWE]) (?P<model>[^\s\]]+)\] ")
_FAILED = re.compile(r"failed to load '([^']+)' version \d+: (.*)")
_LOADED = re.compile(r"successfully loaded '([^']+)'")
# First line of Triton's usage message, which Triton prints if it rejects an option. The error
# message is printed before or after the usage message.
_USAGE = "Usage: tritonserver [options]"
# Triton's Python backend rarely aborts with this message while it starts model processes: locking a
# mutex in its shared memory fails. The next start succeeds (docs/decisions/triton-2.51.md).
_LOCK_FAILURE = "boost::interprocess::lock_exception"
_PROGRAM = re.compile(r"^\S*tritonserver: ")
# Lines with these words may explain a failure. The lines are reported only if the log does not name
# a model that failed to load.
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
# Messages that do not explain a failure. Triton logs most of these messages on every machine
# without a GPU.
_NOISE = (
    "CudaDriverHelper",
    "DCGM",
    "NVML",
    "pinned system memory",
    # Skip the next two messages, because other lines in the log name the cause.
    "creating server: Internal - failed to load all models",
    "No address added out of total",
)


def explain_log(lines: Iterable[str], *, limit: int = 6) -> list[str]:
    """Return the last `limit` lines that explain why a server failed, without their log prefixes.

    Lines from tllm begin with the model's name instead of the prefix. If Triton rejected an option,
    return Triton's error messages about options.
    """
    causes: list[str] = []
    candidates: list[str] = []
    lines = list(lines)
    if _USAGE in lines:
        causes = [_tidy(_PROGRAM.sub("", line)) for line in lines if _is_option_error(line)]
        return causes[-limit:]
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


def is_option_rejected(lines: Iterable[str]) -> bool:
    """Return whether the log shows that Triton rejected one of its options."""
    return _USAGE in lines


def is_lock_failure(lines: Iterable[str]) -> bool:
    """Return whether the log shows that Triton failed to lock a mutex in its shared memory."""
    return any(_LOCK_FAILURE in line for line in lines)


def find_loading(lines: Iterable[str], expected: Sequence[str]) -> list[str]:
    """Return the models in `expected` that have not been loaded yet, in the order of `expected`."""
    loaded = {found[1] for line in lines if (found := _LOADED.search(line))}
    return [model for model in expected if model not in loaded]


def _is_option_error(line: str) -> bool:
    """Return whether a line is an error message rather than a line of Triton's usage message."""
    return bool(line) and line != _USAGE and not line[0].isspace() and not line.endswith(":")


def _split(line: str) -> tuple[str, str]:
    if found := TRITON_PREFIX.match(line):
        return found["level"] or found["iso_level"], line[found.end() :]
    if found := TLLM_PREFIX.match(line):
        return found["level"], f"{found['model']}: {line[found.end() :]}"
    return "", line


def _tidy(text: str) -> str:
    text = text.strip().strip('" ').replace("\\n", "\n")
    # Append the last line, which is the exception if the text contains a traceback.
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    first, last = lines[0], lines[-1]
    is_complete = len(lines) < 2 or last.startswith(("At:", "  "))
    return (first if is_complete else f"{first} … {last.strip()}")[:400]
