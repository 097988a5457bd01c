"""Measure the start of commands, compared with importing Typer and Rich.

    python benchmarks/startup.py [--rounds 15] [--json]

Each round runs `tllm --help`, `tllm list` and `tllm status` without models and servers, one after
another. The result is the median of the rounds' ratios to `python -c "import typer, rich"`, by wall
time with cached files.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TLLM = str(Path(sys.executable).with_name("tllm"))
COMMANDS = {
    "import typer, rich": (sys.executable, "-c", "import typer, rich"),
    "tllm --help": (TLLM, "--help"),
    "tllm list": (TLLM, "list"),
    "tllm status": (TLLM, "status"),
}


def measure_s(command: tuple[str, ...]) -> float:
    """Return the wall time of one run."""
    started_s = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started_s


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    home = tempfile.TemporaryDirectory()
    os.environ["TLLM_HOME"] = home.name
    for command in COMMANDS.values():
        measure_s(command)
    rounds = [
        {name: measure_s(command) for name, command in COMMANDS.items()}
        for _ in range(arguments.rounds)
    ]
    base = next(iter(COMMANDS))
    result = {
        name: {
            "median_s": statistics.median(each[name] for each in rounds),
            "ratio": statistics.median(each[name] / each[base] for each in rounds),
        }
        for name in COMMANDS
    }
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    for name, figures in result.items():
        print(f"{name:<20} {figures['median_s'] * 1000:7.1f} ms   {figures['ratio']:.2f} times")


if __name__ == "__main__":
    main()
