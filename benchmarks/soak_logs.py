"""Find errors in a server's logs that the faults of the soak test do not explain."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

_LOGS = ("server.log", "gateway.log", "supervisor.log")
# An error of Triton, of a model, of the gateway's web server, or of Python.
_ERROR = re.compile(r"^E\d{4} |^E \S+\] |^ERROR|^Traceback|Signal \(\d+\)|\bCRITICAL\b")
_EXPECTED = (
    # Triton on a machine without a GPU.
    "CudaDriverHelper has not been initialized",
    # The end of the server, or of a server whose stub was killed.
    "Signal (15) received",
    # A worker that was killed.
    "the engine worker died (signal 9); restarting it",
)
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")
_MAX_CHARACTERS = 300
_NUM_BEFORE = 4


def find_errors(directory: Path) -> list[str]:
    """Return one message for each kind of unexpected error in the logs in `directory`.

    The message contains the number of such errors and the first of them. If a signal ended a
    process, the message also contains the lines before it, which state the reason.
    """
    lines: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for name in _LOGS:
        path = directory / name
        if not path.exists():
            continue
        written = path.read_text(encoding="utf-8", errors="replace").splitlines()
        for number, line in enumerate(written):
            if _ERROR.search(line) and not any(each in line for each in _EXPECTED):
                kind = f"{name}: {_NUMBER.sub('N', line)}"
                lines[kind] += 1
                first = max(0, number - _NUM_BEFORE) if "Signal (" in line else number
                shown = [each[:_MAX_CHARACTERS] for each in written[first : number + 1] if each]
                examples.setdefault(kind, f"{name}: {' | '.join(shown)}")
    return [f"{count} times in {examples[kind]}" for kind, count in lines.items()]
