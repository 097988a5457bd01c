"""`tllm list` and `tllm remove`: list and delete imported models."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from trtllm_serve_cli.cli.models.engines import list_engines, show_user
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.exits import INTERRUPTED
from trtllm_serve_cli.cli.shared.model_argument import accepts_name
from trtllm_serve_cli.cli.shared.options import JsonOption, YesOption
from trtllm_serve_cli.errors import BadInput, RepositoryError

if TYPE_CHECKING:
    from trtllm_serve_cli.paths import Home
    from trtllm_serve_cli.repository.model.store import ImportedModel


def list_models(
    catalog: Annotated[
        bool,
        typer.Option(
            "--catalog", help=("List the catalog aliases instead of the imported models.")
        ),
    ] = False,
    engines: Annotated[
        bool,
        typer.Option(
            "--engines",
            help=(
                "List the stored engines and the repositories that use each engine, instead of "
                "the imported models."
            ),
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the imported models.

    Example:  tllm list --engines
    """
    if catalog and engines:
        raise typer.BadParameter(
            "--catalog and --engines cannot be used together. Omit one of them."
        )
    if catalog:
        _list_catalog(as_json=as_json)
        return
    if engines:
        list_engines(as_json=as_json)
        return
    from trtllm_serve_cli.paths import find_home
    from trtllm_serve_cli.repository.model import store

    broken: list[RepositoryError] = []
    models = store.list_models(find_home(), on_broken=lambda _, error: broken.append(error))
    if as_json:
        output.show_json([_describe(model) for model in models])
    elif models:
        output.show_table(
            ("model", "engine", "imported", "source"),
            [
                (model.name, model.engine_kind, _day(model.created_at), model.source)
                for model in models
            ],
        )
    elif not broken:
        output.notify("No model has been imported yet. Next: tllm import -m demo")
    for error in broken[:-1]:
        output.show_error(error)
    if broken:
        raise broken[-1]


@accepts_name("name")
def remove(
    name: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--model",
            metavar="NAME",
            help="Model to remove, as shown by `tllm list`.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all imported models.")] = False,
    engines: Annotated[
        bool,
        typer.Option("--engines", help="Remove partial builds and unused engines."),
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a model's repository, and delete its engine if no other repository uses the engine.

    The model's partial builds are also deleted. Downloaded checkpoints and engines outside the
    engine store are not deleted.

    Example:  tllm remove demo --yes

    Example:  tllm remove --engines
    """
    if name is not None and everything:
        raise typer.BadParameter("NAME and --all cannot be used together. Omit one of them.")
    if name is None and not everything and not engines:
        raise typer.BadParameter("Specify what to remove. Pass NAME, --all or --engines.")
    from trtllm_serve_cli.paths import find_home
    from trtllm_serve_cli.repository.model import store
    from trtllm_serve_cli.repository.settings import engine_references
    from trtllm_serve_cli.sources.disk_space import show_size

    home = find_home()
    names = [store.find_name(home, name)] if name else []
    if everything:
        names = store.list_names(home)
    _check_not_served(home, names)
    repositories = [home.models / each for each in names]
    used = {
        path for each in repositories for path in engine_references.engines_of(each, home.engines)
    }
    removal = engine_references.plan_removal(home, repositories, unused=engines)
    sizes = removal.sizes()
    _confirm([f"{path}  ({show_size(size)})" for path, size in sizes.items()], yes=yes)
    needed = engine_references.remove(home, removal)
    for each in names:
        output.notify(f"Removed {each}.")
    users = engine_references.find_users(home)
    kept = sorted(used & set(users))
    for path in kept:
        user_names = ", ".join(show_user(home, user) for user in users[path])
        output.notify(f"Kept the engine {path.name}, which is used by {user_names}.")
    for path in needed:
        output.notify(f"Kept {path}, which another tllm process has started to use.")
    removed = {path: size for path, size in sizes.items() if path not in needed}
    if sizes:
        output.notify(f"Freed {show_size(sum(removed.values()))}.")
    if as_json:
        output.show_json(
            {
                "removed": [{"path": str(path), "bytes": size} for path, size in removed.items()],
                "kept": [str(path) for path in (*kept, *needed)],
            }
        )


def _check_not_served(home: Home, names: list[str]) -> None:
    from trtllm_serve_cli.launch.servers.running import find_servers

    for name in names:
        for server in find_servers(home, name):
            if not server.is_over:
                raise RepositoryError(
                    f"{name} was not removed.",
                    why=f"the server on {server.location} uses the model repository",
                    next_step=f"stop the server with `{server.stop_command}`, then remove the "
                    "model",
                )


def _confirm(paths: list[str], *, yes: bool) -> None:
    if not paths:
        output.notify("Nothing to remove.")
        return
    if yes:
        return
    output.notify("The following will be deleted:\n  " + "\n  ".join(paths))
    if not sys.stdin.isatty():
        raise BadInput(
            "Nothing was deleted.",
            why="stdin is not a terminal, so the deletion cannot be confirmed",
            next_step="pass --yes to delete without confirmation",
        )
    try:
        is_confirmed = typer.confirm("Continue?", err=True)
    except typer.Abort:  # Ctrl-C or Ctrl-D
        output.notify("\nNothing was deleted.")
        raise typer.Exit(INTERRUPTED) from None
    if not is_confirmed:
        output.notify("Nothing was deleted.")
        raise typer.Exit


def _list_catalog(*, as_json: bool) -> None:
    from trtllm_serve_cli.catalog.entries import load_catalog

    entries = sorted(load_catalog().items())
    if as_json:
        output.show_json(
            [{"alias": alias, "source": entry.source, "gated": entry.is_gated,
              "family": entry.family, "parameters": entry.num_parameters}
             for alias, entry in entries]
        )  # fmt: skip
        return
    output.show_table(
        ("alias", "source", ""),
        [(alias, entry.source, "gated" if entry.is_gated else "") for alias, entry in entries],
    )


def _describe(model: ImportedModel) -> dict[str, object]:
    return {
        "name": model.name,
        "engine": model.engine_kind,
        "source": model.source,
        "repository": str(model.path),
        "engine_dir": str(model.engine_path),
        "created_at": model.created_at,
    }


def _day(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
