"""Check that a repository's engine and tokenizer exist, and that its settings fit the engine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_serve_cli.build.engine import ENGINE_FILE
from trtllm_serve_cli.engine_kinds.registry import find_kind
from trtllm_serve_cli.engine_kinds.tensorrt.built_engine import (
    has_paged_context_fmha,
    parse_legacy_build,
)
from trtllm_serve_cli.engine_kinds.tensorrt.serving import PAGED_CONTEXT_PARAMETERS
from trtllm_serve_cli.repository.model.findings import Checked, Finding
from trtllm_serve_cli.repository.model.instances import check_instances, check_ranks_of_instances
from trtllm_serve_cli.repository.model.model_repository import OpenRepository
from trtllm_serve_cli.repository.model.parameters import load_parameters
from trtllm_serve_cli.repository.model.store import command_to_import_again

_VERSION = "parameters.tensorrt_llm_version"


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The limits and properties of an engine. Unknown values are None.

    - `path`: file that contains the values. The file is `config.json` for a TensorRT engine or a
      checkpoint, and `engine.json` for other engines that tllm built.
    - `version`: TensorRT-LLM version that built the engine. Empty if the version is unknown, or if
      the engine is not a TensorRT engine.
    """

    path: Path
    vocab_size: int | None = None
    max_batch_size: int | None = None
    max_beam_width: int | None = None
    max_seq_len: int | None = None
    world_size: int | None = None
    has_paged_context_fmha: bool | None = None
    version: str = ""


def check_engine_and_paths(checked: Checked) -> Iterator[Finding]:
    """Yield findings about missing paths and about values that do not fit the engine."""
    yield from _check_paths(checked)
    for model in checked.configs:
        if checked.repository.role(model) == "tensorrt_llm":
            yield from check_instances(checked, model)
        limits = _limits_of(checked.repository, model)
        if limits is not None:
            yield from _check_backend(checked, model)
            yield from _check_version(checked, limits)
            yield from _check_limits(checked, model, limits)
            yield from _check_ranks(limits)
            yield from check_ranks_of_instances(checked, model, limits.world_size)
            yield from _check_vocabulary(checked, model, limits)


def list_beyond_engine(repository: OpenRepository) -> list[Finding]:
    """Return errors about settings in the repository that do not fit its engine.

    Check the backend, the TensorRT-LLM version and the limits.
    """
    checked = Checked(repository, {})
    return [
        finding
        for model in repository.texts
        if (limits := _limits_of(repository, model)) is not None
        for finding in (
            *_check_backend(checked, model),
            *_check_version(checked, limits),
            *_check_limits(checked, model, limits),
        )
        if finding.severity == "error"
    ]


def find_trtllm_version(repository: OpenRepository) -> str:
    """Return the TensorRT-LLM version that built the engine, or "" if unknown.

    If the engine's files do not contain the version, return the version in the `config.pbtxt` of a
    text model.
    """
    for model in repository.texts:
        limits = _limits_of(repository, model)
        if limits is not None and limits.version:
            return limits.version
    values = (repository.value(model, _VERSION) for model in repository.texts)
    return next(filter(None, values), "")


def _limits_of(repository: OpenRepository, model: str) -> EngineLimits | None:
    """Return the limits of the engine that `model` runs.

    Return None if `model` does not run an engine, or if the limits are unknown.
    """
    if repository.role(model) != "tensorrt_llm":
        return None
    places = repository.places_in(load_parameters()["engine_dir"], model)
    engine_dir = next(filter(None, (repository.value(model, place) for place in places)), "")
    return read_limits(Path(engine_dir)) if engine_dir else None


def read_world_size(repository: OpenRepository, model: str) -> int:
    """Return the number of ranks of the engine that `model` runs, or 1 if the number is unknown."""
    is_known = model in repository.texts
    engine_dir = repository.value(model, "parameters.gpt_model_path") if is_known else ""
    limits = read_limits(Path(engine_dir)) if engine_dir else None
    return (limits.world_size if limits else None) or 1


def read_limits(directory: Path) -> EngineLimits | None:
    """Return the limits of the engine in `directory`, or None if the limits are unknown."""
    engine_file, config_file = directory / ENGINE_FILE, directory / "config.json"
    facts = _read_json(config_file)
    if "builder_config" in facts:
        return _limits_of_legacy(facts, config_file)
    if not facts.get("build_config"):
        path = engine_file if engine_file.exists() else config_file
        facts = _read_json(engine_file) or facts.get("text_config", facts)
        tokens, positions = _number(facts, "vocab_size"), _number(facts, "max_position_embeddings")
        return EngineLimits(path, tokens, max_seq_len=positions) if facts else None
    model, build = facts.get("pretrained_config"), facts["build_config"]
    mapping = model.get("mapping") if isinstance(model, dict) else None
    has_plugins = isinstance(build, dict) and isinstance(build.get("plugin_config"), dict | None)
    return EngineLimits(
        config_file,
        _number(model, "vocab_size"),
        _number(build, "max_batch_size"),
        _number(build, "max_beam_width"),
        _number(build, "max_seq_len"),
        _number(mapping, "world_size"),
        has_paged_context_fmha(build) if has_plugins else None,
        str(facts.get("version") or ""),
    )


def _limits_of_legacy(facts: dict[str, Any], config_file: Path) -> EngineLimits | None:
    """Return an engine's limits from a `build.py` configuration, or None if `facts` is invalid.

    TensorRT-LLM used `build.py` scripts before it introduced `trtllm-build`.
    """
    try:
        build = parse_legacy_build(facts, config_file.parent)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return EngineLimits(
        config_file,
        build.vocab_size,
        build.max_batch_size,
        build.max_beam_width,
        build.max_seq_len,
        build.world_size,
        build.has_paged_context_fmha,
        "" if build.version == "unknown" else build.version,
    )


def count_tokens(directory: Path) -> int | None:
    """Return the tokenizer's highest token id plus one.

    Return None if the tokenizer's vocabulary cannot be read.
    """
    facts = _read_json(directory / "tokenizer.json")
    model = facts.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    match vocabulary:
        case dict():
            ids = [each for each in vocabulary.values() if isinstance(each, int)]
        case list():
            ids = [len(vocabulary) - 1]
        case _:
            return None
    added = facts.get("added_tokens")
    ids += [number for each in (added if isinstance(added, list) else [])
            if (number := _number(each, "id")) is not None]  # fmt: skip
    return max(ids) + 1 if ids else None


def _check_paths(checked: Checked) -> Iterator[Finding]:
    repository = checked.repository
    for parameter in load_parameters().values():
        if parameter.type != "path" or parameter.is_fact:
            continue
        for model, place in repository.places(parameter):
            value = repository.value(model, place)
            if not value or model not in checked.configs or Path(value).exists():
                continue
            if parameter.name == "tokenizer_dir" and not value.startswith((".", "/", "~")):
                continue  # The value may be a Hugging Face repository name.
            yield checked.finding(
                "error", model, f"{parameter.name} is {value}, which does not exist",
                f"run `{checked.set_command} {parameter.name}=PATH`", place=place,
            )  # fmt: skip


def _check_backend(checked: Checked, model: str) -> Iterator[Finding]:
    """Yield an error if `model` in a rendered repository uses `python` instead of the C++ backend.

    With the `python` backend, an engine kind that runs in a C++ backend requires NVIDIA's Python
    model, which rendered repositories do not contain.
    """
    repository = checked.repository
    runs_in_backend = find_kind(repository.kind).runs_in_triton_backend
    if (
        repository.has_manifest
        and runs_in_backend
        and repository.value(model, "backend") == "python"
    ):
        yield checked.finding(
            "error", model,
            "triton_backend is python, but the repository does not contain NVIDIA's Python model",
            f"run `{checked.set_command} triton_backend=tensorrtllm`", place="backend",
        )  # fmt: skip


def _check_version(checked: Checked, limits: EngineLimits) -> Iterator[Finding]:
    """Yield an error for each text model that does not match the engine's TensorRT-LLM version."""
    repository = checked.repository
    for model in repository.texts:
        rendered = repository.value(model, _VERSION)
        if rendered and limits.version and rendered != limits.version:
            yield checked.finding(
                "error", model,
                f"the model's tensors match TensorRT-LLM {rendered}, but the engine was built "
                f"with {limits.version}",
                f"run `{command_to_import_again(repository.path, repository.name)}`",
                place=_VERSION,
            )  # fmt: skip


def _check_limits(checked: Checked, model: str, limits: EngineLimits) -> Iterator[Finding]:
    """Yield findings about values that exceed the engine's limits or require a missing feature.

    An excessive batch size is only a warning, because the engine's scheduler limits the batch size
    at runtime. The engine rejects requests that exceed the other limits.
    """
    for name, place, limit in (
        ("max_beam_width", "parameters.max_beam_width", limits.max_beam_width),
        ("triton_max_batch_size", "max_batch_size", limits.max_batch_size),
        ("max_seq_len", "parameters.max_seq_len", limits.max_seq_len),
    ):
        value = _parse_int(checked.repository.value(model, place))
        if limit is not None and value is not None and value > limit:
            yield checked.finding(
                "warning" if place == "max_batch_size" else "error", model,
                f"{name} is {value}, but the engine was built for {limit}",
                f"run `{checked.set_command} {name}={limit}`", place=place,
            )  # fmt: skip
    for name in PAGED_CONTEXT_PARAMETERS if limits.has_paged_context_fmha is False else ():
        place = f"parameters.{name}"
        if checked.repository.value(model, place) == "true":
            yield checked.finding(
                "error", model,
                f"{name} is true, but the engine was built without use_paged_context_fmha",
                f"run `{checked.set_command} {name}=false`", place=place,
            )  # fmt: skip


def _check_ranks(limits: EngineLimits) -> Iterator[Finding]:
    engines = len(list(limits.path.parent.glob("*rank*.engine")))
    if limits.world_size is not None and engines != limits.world_size:
        yield Finding(
            "error", limits.path, None,
            f"the engine's world size is {limits.world_size}, but the number of rank*.engine files "
            f"is {engines}",
            "build the engine again, or copy all rank*.engine files from the original folder",
        )  # fmt: skip


def _check_vocabulary(checked: Checked, model: str, limits: EngineLimits) -> Iterator[Finding]:
    repository = checked.repository
    vocab_size = _parse_int(repository.value(model, "parameters.vocab_size"))
    if vocab_size is not None and limits.vocab_size not in (None, vocab_size):
        yield checked.finding(
            "error", model,
            f"vocab_size is {vocab_size}, but the engine's vocabulary has {limits.vocab_size} "
            "tokens",
            f"run `{command_to_import_again(repository.path, repository.name)}`",
            place="parameters.vocab_size",
        )  # fmt: skip
    for text_model, place in repository.places(load_parameters()["tokenizer_dir"]):
        value = repository.value(text_model, place)
        tokens = count_tokens(Path(value)) if value else None
        if tokens and limits.vocab_size is not None and tokens > limits.vocab_size:
            yield checked.finding(
                "error", text_model,
                f"the tokenizer has {tokens} tokens, but the engine's vocabulary has "
                f"{limits.vocab_size}",
                f"run `{checked.set_command} tokenizer_dir=PATH`", place=place,
            )  # fmt: skip


def _parse_int(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,19}", text) else None


def _read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in the file, or {} if the file cannot be read or parsed."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _number(facts: Any, name: str) -> int | None:
    value = facts.get(name) if isinstance(facts, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
