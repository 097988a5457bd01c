"""Engines on disk: folders with an `engine.json` that describes the engine and its build."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_serve_cli import __version__
from trtllm_serve_cli.errors import BuildFailed

ENGINE_FILE = "engine.json"
# Folder of the tokenizer, for kinds whose engine files do not include one.
TOKENIZER_FOLDER = "tokenizer"
ENGINE_SCHEMA = 1
# Fields of single engine kinds, which are stored elsewhere.
_KIND_FIELDS = ("llm_arguments", "details")


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that can be served. `fingerprint` is that of the plan it was built from.

    `max_position_embeddings` is the trained context length, in tokens. `adds_bos` is whether the
    tokenizer prepends `bos_token` to every text. `chat_template` is Jinja source, empty if the
    model has no template. `llm_arguments` are the load arguments of an engine that is a checkpoint.
    `details` are facts that are specific to the engine kind.
    """

    path: Path
    kind: str
    model_name: str
    source: str
    fingerprint: str
    architecture: str
    weights: str
    vocab_size: int
    max_position_embeddings: int
    chat_template: str
    bos_token: str
    eos_token: str
    adds_bos: bool
    llm_arguments: Mapping[str, Any] | None = None
    details: Any = None


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A command of a finished build and its duration."""

    title: str
    command: tuple[str, ...]
    took_s: float


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """The record of a build: an engine built from the checkpoint at the path `checkpoint`.

    `model_name` is the model it was first built for. `facts` are the content of its fingerprint:
    source, options, tool versions, GPU type. `started_at` is in seconds since the epoch.
    """

    model_name: str
    started_at: int
    checkpoint: str
    revision: str | None
    facts: Mapping[str, Any]
    steps: tuple[RecordedStep, ...]


def read_engine(path: Path) -> Engine:
    """Return the engine in the folder `path`, without `details`.

    Raise `BuildFailed` if its `engine.json` cannot be read.
    """
    try:
        facts: dict[str, Any] = json.loads((path / ENGINE_FILE).read_text(encoding="utf-8"))
        names = {each.name for each in dataclasses.fields(Engine)} - {"path", *_KIND_FIELDS}
        return Engine(path=path, **{name: facts[name] for name in names})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BuildFailed(
            f"{path} does not contain an engine that tllm built.",
            why=f"its {ENGINE_FILE} cannot be read: {type(error).__name__}: {error}",
            next_step="build it again with --force",
        ) from error


def find_engine(path: Path, fingerprint: str) -> Engine | None:
    """Return the engine at `path` if it was built from the plan with this fingerprint."""
    if not (path / ENGINE_FILE).exists():
        return None
    engine = read_engine(path)
    return engine if engine.fingerprint == fingerprint else None


def write_engine(engine: Engine, directory: Path) -> None:
    """Write the `engine.json` of `engine` to `directory`, without its path."""
    facts = dataclasses.asdict(engine) | {"schema": ENGINE_SCHEMA}
    for name in ("path", *_KIND_FIELDS):
        del facts[name]
    text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
    (directory / ENGINE_FILE).write_text(text, encoding="utf-8")


def add_build_record(directory: Path, build_record: BuildRecord) -> None:
    """Add the build record to the `engine.json` of `directory`."""
    path = directory / ENGINE_FILE
    facts = json.loads(path.read_text(encoding="utf-8"))
    facts["made"] = dataclasses.asdict(build_record) | {"by": f"tllm {__version__}"}
    path.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_build_record(directory: Path) -> BuildRecord | None:
    """Return the build record of the engine in `directory`, or `None` if it has no valid one."""
    try:
        record = json.loads((directory / ENGINE_FILE).read_text(encoding="utf-8"))["made"]
        steps = tuple(
            RecordedStep(each["title"], tuple(each["command"]), each["took_s"])
            for each in record["steps"]
        )
        names = {each.name for each in dataclasses.fields(BuildRecord)} - {"steps"}
        return BuildRecord(steps=steps, **{name: record[name] for name in names})
    except (OSError, ValueError, KeyError, TypeError):
        return None
