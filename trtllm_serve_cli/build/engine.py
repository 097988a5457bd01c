"""An engine on disk: a folder whose `engine.json` says what it is, and how it was made."""

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
# Where the engine of a kind whose own files are no tokenizer has one.
TOKENIZER_FOLDER = "tokenizer"
ENGINE_SCHEMA = 1
# Fields that one engine kind has, and that lie elsewhere.
_KIND_FIELDS = ("llm_arguments", "details")


@dataclass(frozen=True, slots=True)
class Engine:
    """What can be served. `fingerprint` is that of the plan it was built by.

    `max_position_embeddings` is the context the model was trained on, in tokens. `adds_bos` tells
    whether the tokenizer puts `bos_token` before every text by itself. `chat_template` is Jinja
    source, empty for a model that has none. `llm_arguments` is what the engine's package is loaded
    with, of an engine that is a checkpoint. `details` is what only its kind knows of an engine.
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
    """A command that was run to make an engine, and how long it took."""

    title: str
    command: tuple[str, ...]
    took_s: float


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """How an engine was made, first under `model_name`, from the `checkpoint` at that path.

    `facts` are what its fingerprint is of: source, options, versions of the tools, GPU type.
    `started_at` is in seconds since the epoch.
    """

    model_name: str
    started_at: int
    checkpoint: str
    revision: str | None
    facts: Mapping[str, Any]
    steps: tuple[RecordedStep, ...]


def read_engine(path: Path) -> Engine:
    """Return the engine in the folder `path`, without `details`. Raise `BuildFailed` for none."""
    try:
        facts: dict[str, Any] = json.loads((path / ENGINE_FILE).read_text(encoding="utf-8"))
        names = {each.name for each in dataclasses.fields(Engine)} - {"path", *_KIND_FIELDS}
        return Engine(path=path, **{name: facts[name] for name in names})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BuildFailed(
            f"{path} holds no engine of tllm's.",
            why=f"its {ENGINE_FILE} cannot be read: {type(error).__name__}: {error}",
            next_step="build it again with --force",
        ) from error


def find_engine(path: Path, fingerprint: str) -> Engine | None:
    """The engine at `path` if it was built by the plan of this fingerprint."""
    if not (path / ENGINE_FILE).exists():
        return None
    engine = read_engine(path)
    return engine if engine.fingerprint == fingerprint else None


def write_engine(engine: Engine, directory: Path) -> None:
    """Say in `directory` what `engine` is; its path is wherever the folder ends up."""
    facts = dataclasses.asdict(engine) | {"schema": ENGINE_SCHEMA}
    for name in ("path", *_KIND_FIELDS):
        del facts[name]
    text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
    (directory / ENGINE_FILE).write_text(text, encoding="utf-8")


def add_build_record(directory: Path, build_record: BuildRecord) -> None:
    """Say in the `engine.json` of `directory` how the engine was made."""
    path = directory / ENGINE_FILE
    facts = json.loads(path.read_text(encoding="utf-8"))
    facts["made"] = dataclasses.asdict(build_record) | {"by": f"tllm {__version__}"}
    path.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_build_record(directory: Path) -> BuildRecord | None:
    """How the engine in `directory` was made; None when that is not said."""
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
