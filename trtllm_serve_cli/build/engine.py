"""Read and write `engine.json`, the file in an engine folder that describes the engine."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_serve_cli import __version__
from trtllm_serve_cli.errors import BuildFailed, explain_invalid_file
from trtllm_serve_cli.runtime.embedding_settings import EmbeddingSettings

ENGINE_FILE = "engine.json"
# Tokenizer subfolder of the engine folder. Only engine kinds that do not store the tokenizer with
# the engine files use this subfolder.
TOKENIZER_FOLDER = "tokenizer"
ENGINE_SCHEMA = 1
# `Engine` fields that only some engine kinds use. These fields are never written to engine.json.
_KIND_FIELDS = ("llm_arguments", "details")


@dataclass(frozen=True, slots=True)
class Engine:
    """The description of an engine.

    - `fingerprint`: the fingerprint of the build plan or, if tllm did not build the engine, a hash
      that identifies the engine.
    - `max_position_embeddings`: the model's trained context length, in tokens.
    - `chat_template`: a Jinja template, or empty if the model has no chat template.
    - `tool_chat_template`: the template for conversations with tools, or empty if the model has
      one template for all conversations.
    - `adds_bos`: true if the tokenizer prepends `bos_token` to every text.
    - `llm_arguments`: the arguments for loading the checkpoint, or `None` if the engine kind does
      not serve checkpoints directly.
    - `details`: facts that are specific to the engine kind.
    - `embedding`: the embedding settings, or `None` for text-generation models.
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
    tool_chat_template: str = ""
    llm_arguments: Mapping[str, Any] | None = None
    details: Any = None
    embedding: EmbeddingSettings | None = None

    def list_prompt_parameters(self) -> dict[str, str]:
        """Return the parameters from which `tllm infer` and the gateway read the prompt format."""
        parameters = {
            "chat_template": self.chat_template,
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            "adds_bos": str(self.adds_bos).lower(),
        }
        if self.tool_chat_template:
            parameters["tool_chat_template"] = self.tool_chat_template
        return parameters


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A command from a finished build, with its duration in seconds."""

    title: str
    command: tuple[str, ...]
    took_s: float


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """The record of how an engine was built.

    - `model_name`: the model that the engine was first built for.
    - `started_at`: the start of the build, in seconds since the epoch.
    - `checkpoint`: the checkpoint path.
    - `revision`: the checkpoint's commit hash, or `None` if the checkpoint is not from the hub.
    - `facts`: the data that the fingerprint is computed from, such as the source, the options, the
      tool versions and the GPU type.
    - `steps`: the commands that were run.
    """

    model_name: str
    started_at: int
    checkpoint: str
    revision: str | None
    facts: Mapping[str, Any]
    steps: tuple[RecordedStep, ...]


def read_engine(path: Path) -> Engine:
    """Return the engine described by the `engine.json` in `path`.

    Fields that engine.json never contains keep their defaults. Raise `BuildFailed` if the file
    cannot be read.
    """
    try:
        facts: dict[str, Any] = json.loads((path / ENGINE_FILE).read_text(encoding="utf-8"))
        optional = {"path", "embedding", "tool_chat_template", *_KIND_FIELDS}
        names = [each.name for each in dataclasses.fields(Engine) if each.name not in optional]
        embedding = facts.get("embedding")
        return Engine(
            path=path,
            # Earlier versions of tllm did not write this field.
            tool_chat_template=facts.get("tool_chat_template", ""),
            embedding=EmbeddingSettings.from_dict(embedding) if embedding else None,
            **{name: facts[name] for name in names},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _explain_unreadable(path, error) from error


def _explain_unreadable(path: Path, error: Exception) -> BuildFailed:
    return BuildFailed(
        f"{path} does not contain an engine that tllm built.",
        why=explain_invalid_file(ENGINE_FILE, error),
        next_step="build the engine again with --force",
    )


def find_engine(path: Path, fingerprint: str) -> Engine | None:
    """Return the engine in `path` if it has this fingerprint. Otherwise, return `None`.

    Raise `BuildFailed` if the `engine.json` in `path` cannot be read.
    """
    if not (path / ENGINE_FILE).exists():
        return None
    engine = read_engine(path)
    return engine if engine.fingerprint == fingerprint else None


def write_engine(engine: Engine, directory: Path) -> None:
    """Write the `engine.json` that describes `engine` to `directory`."""
    facts = dataclasses.asdict(engine) | {"schema": ENGINE_SCHEMA}
    for name in ("path", *_KIND_FIELDS):
        del facts[name]
    if engine.embedding is None:
        del facts["embedding"]
    text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
    (directory / ENGINE_FILE).write_text(text, encoding="utf-8")


def add_build_record(directory: Path, build_record: BuildRecord) -> None:
    """Add the build record to the `engine.json` in `directory`.

    Raise `BuildFailed` if the file is not valid JSON. Raise `OSError` if the file cannot be read or
    written.
    """
    path = directory / ENGINE_FILE
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _explain_unreadable(directory, error) from error
    facts["made"] = dataclasses.asdict(build_record) | {"by": f"tllm {__version__}"}
    path.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_build_record(directory: Path) -> BuildRecord | None:
    """Return the build record of the engine in `directory`, or `None` if it cannot be read."""
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
