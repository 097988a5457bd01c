"""`tllm update`: update the runtime in a model repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtllm_serve_cli.cli.models.parameters import open_named
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.model_argument import accepts_name
from trtllm_serve_cli.cli.shared.options import (
    DryRunOption,
    ImportedModelOption,
    JsonOption,
    RenderedRepoOption,
)
from trtllm_serve_cli.errors import RepositoryError

if TYPE_CHECKING:
    from trtllm_serve_cli.paths import Home
    from trtllm_serve_cli.repository.model.model_repository import OpenRepository
    from trtllm_serve_cli.repository.model.runtime_copy import RuntimeUpdate


@accepts_name("name")
def update(
    name: ImportedModelOption = None,
    repo: RenderedRepoOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Update the runtime in a model repository to this version of tllm.

    A repository contains a copy of the runtime of the version that imported the model. The update
    replaces the tllm_runtime folders. The engine, the settings and all other files stay unchanged.
    Stop the servers of the model first.

    Example:  tllm update demo
    """
    from trtllm_serve_cli.importing.importer import hold_import_lock
    from trtllm_serve_cli.paths import find_home
    from trtllm_serve_cli.repository.model.runtime_copy import plan_runtime_update

    repository, home = open_named(name, repo), find_home()
    planned = plan_runtime_update(repository)
    if not dry_run:
        with hold_import_lock(home, repository.name, output.notify):
            # Plan again, because another process may have imported the model.
            planned = _update(home, open_named(name, repo))
    if as_json:
        output.show_json(
            {"repository": str(repository.path), "updated": list(map(str, planned.folders))}
        )
    elif not planned.folders:
        output.notify("Already up to date; nothing changed.")
    else:
        for folder in planned.folders:
            output.notify(f"{'Would replace' if dry_run else 'Replaced'} {folder}")


def _update(home: Home, repository: OpenRepository) -> RuntimeUpdate:
    from trtllm_serve_cli.repository.model.runtime_copy import plan_runtime_update, update_runtime

    planned = plan_runtime_update(repository)
    if planned.folders:
        _check_not_served(home, repository)
    update_runtime(planned)
    return planned


def _check_not_served(home: Home, repository: OpenRepository) -> None:
    """Raise `RepositoryError` if a server may be using the repository.

    A running model starts its engine worker again from the repository after a crash. The worker
    must be of the same version as the model.
    """
    from trtllm_serve_cli.launch.servers.running import find_serving

    for server in find_serving(home, repository.path, repository.name):
        if not server.is_over:
            raise RepositoryError(
                f"The runtime of {repository.name} was not updated.",
                why=f"the server on {server.location} uses the model repository",
                next_step=f"stop the server with `{server.stop_command}`, then run the same "
                "command again",
            )
