"""Several model repositories as one, which a server of several models is given.

A model that was imported as `a` stays `a` there, since that is what its users ask; the models
around it are called `a_preprocessing`, `a_tensorrt_llm` and so on, and ask each other by these
names. Two prefixed names can only be the same when their owners are; an own name that is another's
prefixed one is refused.

Only the `config.pbtxt` of each model is written anew. All that lies beside it is linked to: a copy
would be large where a version folder holds an engine, and old once the model is imported anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.paths import write_aside
from trtllm_serve_cli.repository.model.model_repository import CONFIG, OpenRepository
from trtllm_serve_cli.repository.model.parameters import load_parameters
from trtllm_serve_cli.repository.pbtxt import change


@dataclass(frozen=True, slots=True)
class PlacedModel:
    """A model of a combined repository: its name there, and its folder in its own repository.

    `changes` are what its `config.pbtxt` says differently: place -> value.
    """

    name: str
    source: Path
    changes: dict[str, str] = field(default_factory=dict)


def prefixed(owner: str, model: str) -> str:
    """What the model of the repository `owner` is called beside other repositories' models."""
    return model if model == owner else f"{owner}_{model}"


def plan_combination(repositories: Sequence[OpenRepository]) -> tuple[PlacedModel, ...]:
    """The models of one repository made of these.

    Raises `BadInput` for two models of one name, `RepositoryError` for a file that cannot be read.
    """
    owners = [repository.name for repository in repositories]
    if duplicates := [name for name, count in Counter(owners).items() if count > 1]:
        raise BadInput(
            f"One server cannot serve two models called {duplicates[0]}.",
            why=" and ".join(str(each.path) for each in repositories if each.name == duplicates[0]),
            next_step="import one of them under another name: tllm import -m NAME -s SOURCE",
        )
    placed = tuple(each for repository in repositories for each in _rename_models(repository))
    counts = Counter(each.name for each in placed)
    if clash := next((name for name, count in counts.items() if count > 1), None):
        owner, other = (each.source.parent.name for each in placed if each.name == clash)
        raise BadInput(
            f"{owner} and {other} cannot be served together.",
            why=f"{clash} would be the name of a model of both",
            next_step="serve each alone, or import one of them under another name",
        )
    return placed


def write_combination(models: Sequence[PlacedModel], destination: Path) -> None:
    """Make the repository in `destination`, which appears whole or stays as it was."""
    with write_aside(destination) as aside:
        for model in models:
            folder = aside / model.name
            folder.mkdir()
            for entry in model.source.iterdir():
                if entry.name != CONFIG:
                    (folder / entry.name).symlink_to(entry)
            text = (model.source / CONFIG).read_bytes().decode("utf-8")
            for place, value in model.changes.items():
                text = change(text, place, value)
            (folder / CONFIG).write_bytes(text.encode("utf-8"))


def _rename_models(repository: OpenRepository) -> Iterator[PlacedModel]:
    owner = repository.name
    for model in repository.texts:
        name = prefixed(owner, model)
        changes = {} if name == model else {"name": name}
        changes |= dict(_renamed_steps(repository, model))
        changes |= dict(_renamed_references(repository, model))
        yield PlacedModel(name, repository.path / model, changes)


def _renamed_steps(repository: OpenRepository, model: str) -> Iterator[tuple[str, str]]:
    """The steps of an ensemble of Triton's own."""
    for other in repository.texts:
        place = f"ensemble_scheduling.step.{other}.model_name"
        if repository.values(model, place):
            yield place, prefixed(repository.name, other)


def _renamed_references(repository: OpenRepository, model: str) -> Iterator[tuple[str, str]]:
    """The models that a text model asks; one that is not said is asked by its usual name."""
    for parameter in load_parameters().values():
        if parameter.type != "model":
            continue
        for place in parameter.fills.get(repository.role(model) or "", ()):
            other = repository.value(model, place) or parameter.default
            if other is not None and other in repository.texts:
                yield place, prefixed(repository.name, other)
