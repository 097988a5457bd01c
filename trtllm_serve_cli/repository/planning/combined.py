"""Combine several model repositories into one repository for a single server.

A model that was imported as `a` keeps the name `a`, because clients use that name in their
requests. The other models in its repository get the prefix `a_`, for example `a_preprocessing` and
`a_tensorrt_llm`. References to renamed models are updated. If two models would have the same name,
the combination is rejected.

Only each model's `config.pbtxt` is rewritten. All other files and folders are symbolic links,
because copies of version folders could be large and would be stale after the next import.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from trtllm_serve_cli.errors import BadInput, RepositoryError
from trtllm_serve_cli.paths import write_aside
from trtllm_serve_cli.repository.model.model_repository import CONFIG, OpenRepository
from trtllm_serve_cli.repository.model.parameters import load_parameters
from trtllm_serve_cli.repository.pbtxt import change
from trtllm_serve_cli.repository.planning.placed_model import PlacedModel, prefixed


def plan_combination(repositories: Sequence[OpenRepository]) -> tuple[PlacedModel, ...]:
    """Plan a repository that combines `repositories`. Return its models.

    Raise `BadInput` if two models would have the same name, and `RepositoryError` if a
    `config.pbtxt` cannot be parsed.
    """
    owners = [repository.name for repository in repositories]
    if duplicates := [name for name, count in Counter(owners).items() if count > 1]:
        raise BadInput(
            f"One server cannot serve two models named {duplicates[0]}.",
            why=" and ".join(str(each.path) for each in repositories if each.name == duplicates[0])
            + " contain models with this name",
            next_step="import one of the models under another name with "
            "`tllm import -m NAME -s SOURCE`",
        )
    placed = tuple(each for repository in repositories for each in _rename_models(repository))
    counts = Counter(each.name for each in placed)
    if clash := next((name for name, count in counts.items() if count > 1), None):
        owner, other = (each.source.parent.name for each in placed if each.name == clash)
        raise BadInput(
            f"{owner} and {other} cannot be served together.",
            why=f"the combined repository would contain two models named {clash}",
            next_step="serve the models with separate servers, or import one of them under "
            "another name",
        )
    return placed


def write_combination(models: Sequence[PlacedModel], destination: Path) -> None:
    """Write the combined repository to `destination` atomically.

    Raise `RepositoryError` if a `config.pbtxt` is not valid, or `OSError` if a file cannot be read
    or written.
    """
    with write_aside(destination) as aside:
        for model in models:
            folder = aside / model.name
            folder.mkdir()
            for entry in model.source.iterdir():
                if entry.name != CONFIG:
                    (folder / entry.name).symlink_to(entry)
            (folder / CONFIG).write_bytes(_change_config(model).encode("utf-8"))


def _change_config(model: PlacedModel) -> str:
    path = model.source / CONFIG
    try:
        text = path.read_bytes().decode("utf-8")
        for place, value in model.changes.items():
            text = change(text, place, value)
    except ValueError as error:
        raise RepositoryError(
            f"{path} is not valid.",
            why=str(error),
            next_step=f"run `tllm validate --repo {shlex.quote(str(path.parent.parent))}`, then "
            "correct the file or import the model again with `tllm import -m NAME --force`",
        ) from error
    return text


def _rename_models(repository: OpenRepository) -> Iterator[PlacedModel]:
    owner = repository.name
    for model in repository.texts:
        name = prefixed(owner, model)
        changes = {} if name == model else {"name": name}
        changes |= dict(_renamed_steps(repository, model))
        changes |= dict(_renamed_references(repository, model))
        yield PlacedModel(name, repository.path / model, changes)


def _renamed_steps(repository: OpenRepository, model: str) -> Iterator[tuple[str, str]]:
    """Yield the changes that rename the models in an ensemble's steps.

    Yield nothing if `model` is not an ensemble.
    """
    for other in repository.texts:
        place = f"ensemble_scheduling.step.{other}.model_name"
        if repository.values(model, place):
            yield place, prefixed(repository.name, other)


def _renamed_references(repository: OpenRepository, model: str) -> Iterator[tuple[str, str]]:
    """Yield the changes that rename the models referenced by the parameters of `model`.

    Parameters without a value are also changed, because their default values are the old names.
    """
    for parameter in load_parameters().values():
        if parameter.type != "model":
            continue
        for place in repository.places_in(parameter, model):
            other = repository.value(model, place) or parameter.default
            if other is not None and other in repository.texts:
                yield place, prefixed(repository.name, other)
