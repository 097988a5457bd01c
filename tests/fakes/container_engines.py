"""Fake docker and podman programs with scripted output."""

from __future__ import annotations

from pathlib import Path

WORKS = {"docker": 'echo "27.1.1 [\\"name=seccomp,profile=builtin\\"]"', "podman": "echo 5.2.0"}


def write_engine(folder: Path, name: str, **answers: str) -> Path:
    """Write a working `name` to `folder`; `answers` are lines of shell by subcommand.

    The program appends its arguments to the file `name`.calls in the same folder. `run` executes
    the command after the image `img`, as an attached container does.
    """
    run = 'while [ "$1" != img ]; do shift; done; shift; exec "$@"'
    scripts = {"info": WORKS[name], "run": run, "rm": "exit 0", "inspect": "exit 1", **answers}
    cases = "\n".join(f"  {word}) {line} ;;" for word, line in scripts.items())
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(
        f'#!/bin/sh\necho "$*" >> "$0.calls"\ncase "$1" in\n{cases}\n  *) exit 1 ;;\nesac\n'
    )
    program.chmod(0o755)
    return program


def calls_of(program: Path, word: str) -> list[str]:
    """Return the recorded calls that start with `word`."""
    lines = program.with_name(f"{program.name}.calls").read_text().splitlines()
    return [line for line in lines if line.split()[0] == word]
