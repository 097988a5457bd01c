"""`tllm show`, `set` and `validate`: show, change and check a model repository."""

from __future__ import annotations

import dataclasses
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtllm_serve_cli.cli.models.import_command import notify_unused
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.completion import completes, imported_models, settings
from trtllm_serve_cli.cli.shared.exits import USER_CAN_FIX
from trtllm_serve_cli.cli.shared.model_argument import accepts_name, choose_name
from trtllm_serve_cli.cli.shared.option_signature import parse_pairs
from trtllm_serve_cli.cli.shared.options import ImportedModelOption, JsonOption
from trtllm_serve_cli.errors import BadInput

if TYPE_CHECKING:
    from trtllm_serve_cli.launch.servers.running import RunningServer
    from trtllm_serve_cli.repository.model.findings import Finding
    from trtllm_serve_cli.repository.model.model_repository import OpenRepository
    from trtllm_serve_cli.repository.model.parameters import Parameter
    from trtllm_serve_cli.repository.settings.settings import Change, Setting

RepoOption = Annotated[
    Path | None,
    typer.Option(
        "--repo",
        metavar="DIR",
        help="Model repository folder outside TLLM_HOME, such as a copy of NVIDIA's "
        "inflight_batcher_llm.",
    ),
]
_WIDTH = 80
_ORIGINS = {
    "set": "set by `tllm set`",
    "import": "set at import",
    "engine": "from the engine",
    "default": "default",
    "file": "edited in the repository",
    "unset": "not set",
}


@accepts_name("name")
def show(
    name: ImportedModelOption = None, repo: RepoOption = None, as_json: JsonOption = False
) -> None:
    """Show and explain a model's parameters.

    Print the value, origin and explanation of each parameter. For a changed parameter, also print
    the value that the import wrote. To restore it, pass that value to `tllm set`.

    Example:  tllm show demo
    """
    from trtllm_serve_cli.repository.settings.settings import list_settings

    repository = open_named(name, repo)
    settings = list_settings(repository)
    if as_json:
        output.show_json(
            {
                "model": repository.name,
                "engine": repository.kind,
                "repository": str(repository.path),
                "parameters": [_describe(each) for each in settings],
            }
        )
        return
    print(f"{repository.name}: engine kind {repository.kind}, in {repository.path}")
    from trtllm_serve_cli.engine_kinds.registry import find_kind

    has_versions = find_kind(repository.kind).runs_in_triton_backend
    for each in settings:
        print("\n" + _render_setting(each, has_versions=has_versions))


@completes(words=settings, model=imported_models)
def set_(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME] KEY=VALUE...",
            help="Model name (required if several models are imported), followed by the "
            "parameters to change.",
        ),
    ],
    model: ImportedModelOption = None,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a model's parameters.

    Parameters have the same names as the variables in NVIDIA's templates. Parameters that are not
    specified keep their values. Restart a running server to apply the changes. With --repo, tllm
    does not check that engine_dir and tokenizer_dir exist on this machine.

    Example:  tllm set demo enable_kv_cache_reuse=false max_queue_size=100

    Example:  tllm set --repo ./inflight_batcher_llm kv_cache_free_gpu_mem_fraction=0.9
    """
    from trtllm_serve_cli.repository.model.parameters import check_required_folders, resolve_paths
    from trtllm_serve_cli.repository.settings.settings import (
        apply_changes,
        plan_changes,
        write_changes,
    )

    has_name = repo is None and "=" not in words[0]
    pairs = parse_pairs(words[1:] if has_name else words, option="")
    requested = resolve_paths(pairs, Path.cwd())
    if not requested:
        raise BadInput(
            "No parameter was specified.",
            next_step=f"specify a parameter, for example `tllm set {words[0]} "
            "enable_kv_cache_reuse=false`",
        )
    if repo is None:
        check_required_folders(requested)
    name = choose_name(words[0] if has_name else None, model)
    repository = open_named(name, repo)
    changes = plan_changes(repository, requested)
    texts = apply_changes(repository, changes)
    if changes:
        write_changes(repository, texts, requested)
    serving = _find_serving(repository) if changes else []
    if as_json:
        output.show_json(
            {
                "repository": str(repository.path),
                "changes": [dataclasses.asdict(each) for each in changes],
                "needs_restart": [_name_served(repository, server) for server in serving],
            }
        )
        return
    notify_unused(requested, repository.kind)
    if not changes:
        output.notify("Already set; nothing changed.")
        return
    _show_changes(changes)
    for server in serving:
        name = _name_served(repository, server)
        output.notify(f"A running server uses the old values. Next: tllm restart -m {name}")


@accepts_name("name")
def validate(
    name: ImportedModelOption = None, repo: RepoOption = None, as_json: JsonOption = False
) -> None:
    """Check a model repository for errors.

    The exit code is 3 if the repository has an error, and 0 if it has only warnings.

    Example:  tllm validate demo
    """
    from trtllm_serve_cli.repository.validation.validate import validate_repository

    repository = open_named(name, repo)
    findings = validate_repository(repository)
    num_errors = sum(each.severity == "error" for each in findings)
    if as_json:
        output.show_json([dataclasses.asdict(each) for each in findings])
    else:
        for each in findings:
            print("\n".join(_render_finding(each, repository.path)))
        counts = f"{_count(num_errors, 'error')}, {_count(len(findings) - num_errors, 'warning')}"
        output.notify(f"{repository.path}: {counts} in {_count(len(repository.texts), 'model')}.")
    if num_errors:
        raise typer.Exit(USER_CAN_FIX)


def open_named(name: str | None, repo: Path | None) -> OpenRepository:
    """Return the repository of the model `name`, or the repository in the folder `repo`.

    If both are None, return the repository of the only imported model. Raise `BadInput` if both are
    set, or `RepositoryError` if the repository cannot be read. Raise `UnknownModel` if the model is
    not imported, or if both are None and the number of imported models is not one.
    """
    from trtllm_serve_cli.paths import find_home
    from trtllm_serve_cli.repository.model.model_repository import open_repository
    from trtllm_serve_cli.repository.model.store import load_model

    if repo is None:
        return open_repository(load_model(find_home(), name).path)
    if name is not None:
        raise BadInput(
            f"The name {name} and --repo {repo} cannot be used together.",
            next_step=f"omit {name} or --repo",
        )
    return open_repository(repo.absolute())


def _find_serving(repository: OpenRepository) -> list[RunningServer]:
    """Return the running servers that serve `repository`."""
    from trtllm_serve_cli.launch.servers.running import find_serving
    from trtllm_serve_cli.paths import find_home

    serving = find_serving(find_home(), repository.path, repository.name)
    return [server for server in serving if server.is_running]


def _name_served(repository: OpenRepository, server: RunningServer) -> str:
    return repository.name if repository.name in server.models else server.models[0]


def _show_changes(changes: list[Change]) -> None:
    """Print the changes as a table.

    A change that applies to several fields of a model is printed only once.
    """
    from trtllm_serve_cli.repository.model.parameters import load_parameters
    from trtllm_serve_cli.repository.settings.settings import is_set

    table = load_parameters()
    rows = []
    for each in changes:
        unset = _describe_unset(table.get(each.parameter))
        values = (value if is_set(value) else unset for value in (each.old, each.new))
        rows.append((each.parameter, each.model, *values))
    output.show_table(("parameter", "model", "from", "to"), list(dict.fromkeys(rows)))


def _describe_unset(parameter: Parameter | None) -> str:
    """Return the description of a missing value, with the parameter's default if it has one."""
    default = parameter and (parameter.default if parameter.unset is None else parameter.unset)
    return _ORIGINS["unset"] + (f"; default: {default}" if default else "")


def _describe(setting: Setting) -> dict[str, Any]:
    from trtllm_serve_cli.engine_kinds.registry import UPSTREAM

    return {
        "name": setting.parameter.name,
        "value": setting.value,
        "values": dict(setting.values),
        "from": setting.origin,
        "at_import": setting.imported,
        "explanation": setting.parameter.explanation,
        "since": setting.parameter.since if setting.parameter.applies_to(UPSTREAM) else None,
    }


def _render_setting(setting: Setting, *, has_versions: bool) -> str:
    """Return the setting and its explanation as lines that fit the terminal.

    The first line has the form `name = value  (origin)`. If `has_versions` is set and TensorRT-LLM
    added the parameter after version 0.5, the explanation includes the version.
    """
    parameter, origin = setting.parameter, _ORIGINS[setting.origin]
    if setting.origin == "unset":
        head, origin = parameter.name, _describe_unset(parameter)
    else:
        head = f"{parameter.name} = {textwrap.shorten(setting.value, 200, placeholder=' …')}"
        if setting.imported is not None:
            origin += f"; at import: {setting.imported or _ORIGINS['unset']}"
    indent = "    "
    title = output.wrap(f"{head}  ({origin})", rest=indent, limit=_WIDTH)
    meaning = parameter.explanation
    if has_versions and parameter.since != "0.5":
        meaning += f" Since TensorRT-LLM {parameter.since}."
    return f"{title}\n{output.wrap(meaning, first=indent, rest=indent, limit=_WIDTH)}"


def _render_finding(finding: Finding, root: Path) -> list[str]:
    path = finding.path.relative_to(root) if root in finding.path.parents else finding.path
    where = f"{path}:{finding.line}" if finding.line else f"{path}"
    indent = "    "
    what = output.wrap(finding.what, first=indent, rest=indent, limit=_WIDTH)
    lines = [f"{finding.severity}: {where}", what]
    return [*lines, f"    Next: {finding.next_step}"] if finding.next_step else lines


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
