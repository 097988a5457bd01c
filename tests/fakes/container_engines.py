"""Programs in the place of docker and podman, which say what a test wants."""

from __future__ import annotations

from pathlib import Path

WORKS = {"docker": 'echo "27.1.1 [\\"name=seccomp,profile=builtin\\"]"', "podman": "echo 5.2.0"}


def write_engine(folder: Path, name: str, **answers: str) -> Path:
    """`name` in `folder`, which works; `answers` are lines of shell by the first word it is told.

    It appends what it is told to the file `name`.calls beside it. `run` runs what comes after the
    image `img`, as whoever is attached to a container does.
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
    """What it was told, of those that start with `word`."""
    lines = program.with_name(f"{program.name}.calls").read_text().splitlines()
    return [line for line in lines if line.split()[0] == word]
