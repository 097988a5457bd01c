"""An engine on disk: a folder whose `engine.json` says what it is and what it was made from."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_serve_cli.build.tensorrt_engine import TensorRtBuild
from trtllm_serve_cli.errors import BuildFailed

ENGINE_FILE = "engine.json"
ENGINE_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Engine:
    """What can be served. `fingerprint` is that of the plan it was built by.

    `max_position_embeddings` is the context the model was trained on, in tokens. `adds_bos` tells
    whether the tokenizer puts `bos_token` before every text by itself. `chat_template` is Jinja
    source, empty for a model that has none. `tensorrt` is there for that engine kind only.
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
    tensorrt: TensorRtBuild | None = None


def read_engine(path: Path) -> Engine:
    """The engine in the folder `path`. Raises `BuildFailed` when there is none, or a broken one."""
    try:
        facts: dict[str, Any] = json.loads((path / ENGINE_FILE).read_text(encoding="utf-8"))
        names = {each.name for each in dataclasses.fields(Engine)} - {"path", "tensorrt"}
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
    del facts["path"], facts["tensorrt"]
    text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
    (directory / ENGINE_FILE).write_text(text, encoding="utf-8")
