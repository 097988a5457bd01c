"""`tllm import` and `tllm build`: build a model's engine and render its repository."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.completion import known_models
from trtllm_serve_cli.cli.shared.model_argument import accepts_name
from trtllm_serve_cli.cli.shared.option_signature import OptionValues, parse_pairs, takes_options
from trtllm_serve_cli.cli.shared.options import DryRunOption, JsonOption
from trtllm_serve_cli.cli.shared.progress_ui import show_work
from trtllm_serve_cli.importing.sections import EngineSection, ModelSection, RepositorySection
from trtllm_serve_cli.option_fields import option_fields

if TYPE_CHECKING:
    from trtllm_serve_cli.importing.declaration import Declaration
    from trtllm_serve_cli.importing.import_plan import ImportPlan
    from trtllm_serve_cli.paths import Home

FileOption = Annotated[
    Path | None,
    typer.Option(
        "-f",
        "--file",
        metavar="TLLM.YAML",
        help="tllm.yaml file with values for these options (see docs/reference/tllm-yaml.md). "
        "Command-line options override the file. Default: no file.",
    ),
]
BuildOptionsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--build-option",
        metavar="KEY=VALUE",
        help=(
            "Build option to set. KEY is a field of the build section in tllm.yaml (see "
            "docs/reference/tllm-yaml.md), or a TensorRT-LLM flag such as a trtllm-build flag. "
            "Repeatable."
        ),
    ),
]
_REBUILD = "Rebuild the engine even if it already exists"
RebuildOption = Annotated[bool, typer.Option("--force", help=f"{_REBUILD}.")]
ReplaceOption = Annotated[
    bool,
    typer.Option(
        "--force",
        help=f"{_REBUILD}, and replace a model that has the same name but a different source. Also "
        "delete files that tllm did not create from the model's repository.",
    ),
]
DraftOption = Annotated[
    str | None,
    typer.Option(
        "--draft",
        metavar="NAME",
        help="Imported model to use as the draft model for speculative decoding. Both models must "
        "have the engine kind `tensorrt` and the same tokenizer. Default: no draft model.",
    ),
]


_MODEL, _ENGINE, _BUILD = map(option_fields, (ModelSection, EngineSection, EngineOptions))


@accepts_name("model_name", complete=known_models)
@takes_options(
    model=_MODEL, engine=_ENGINE, build=_BUILD, repository=option_fields(RepositorySection)
)
def import_model(
    *,
    model: OptionValues,
    file: FileOption = None,
    engine: OptionValues,
    build: OptionValues,
    build_option: BuildOptionsOption = None,
    repository: OptionValues,
    draft: DraftOption = None,
    force: ReplaceOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fetch a model, build its engine and render its repository.

    Repeated imports reuse existing checkpoints and engines, and keep changes made with `tllm set`.

    Example:  tllm import -m demo

    Example:  tllm import -m mine -s gguf:./model.gguf --max-batch-size 16

    Example:  tllm import -m llama-3.1-8b --engine tensorrt --draft llama-3.2-1b
    """
    sections = {"model": model, "engine": engine, "build": build, "repository": repository}
    declaration = declare(file, build_option or [], sections)
    from trtllm_serve_cli.engine_kinds.serving import list_limits
    from trtllm_serve_cli.importing.draft_model import with_draft_model
    from trtllm_serve_cli.importing.import_plan import plan_import
    from trtllm_serve_cli.importing.import_repository import preview_repository
    from trtllm_serve_cli.importing.import_summary import describe_serving
    from trtllm_serve_cli.paths import find_home

    home = find_home()
    if draft is not None:
        declaration = with_draft_model(declaration, draft, home)
    if dry_run:
        plan = plan_import(declaration, home, is_dry_run=True)
        preview = preview_repository(plan)
        if as_json:
            limits = list_limits(preview.parameters) if preview else None
            output.show_json({**plan.as_dict(), "limits": limits})
            return
        lines = [*plan.preserved.describe(), f"Render the model repository {plan.repository}"]
        if preview:
            lines[:0] = describe_serving(preview, None, None, plan.machine.host)
        _show_plan(plan, "\n".join(lines))
        return
    path = import_and_notify(declaration, home, force=force, as_json=as_json)
    if not as_json:
        is_elsewhere = declaration.repository.dir is not None
        which = f"--repo {shlex.quote(str(path))}" if is_elsewhere else f"-m {path.name}"
        output.notify(f"Next: tllm start {which}")


def import_and_notify(
    declaration: Declaration, home: Home, *, force: bool = False, as_json: bool = False
) -> Path:
    """Import the model in `declaration` and return the folder of its repository.

    Print the progress and a summary of the repository. If `as_json` is set, print the summary as
    JSON.
    """
    from trtllm_serve_cli.engine_kinds.cpu_memory import find_host
    from trtllm_serve_cli.importing import importer
    from trtllm_serve_cli.importing.import_summary import describe_serving, describe_stages
    from trtllm_serve_cli.sizing.gpus import find_present_card

    stages_s: dict[str, float] = {}
    with show_work() as display:
        display = display.collect_stages(stages_s)
        rendered, path = importer.import_model(declaration, home, force=force, display=display)
    name = declaration.model.name
    if as_json:
        output.show_json(
            {
                "model": name,
                "engine": str(rendered.engine.path),
                "repository": str(path),
                "stages_s": {stage: round(each, 3) for stage, each in stages_s.items()},
            }
        )
        return path
    notify_unused(declaration.repository.parameters, rendered.engine.kind)
    output.notify(f"Model repository: {path}")
    width = max(len(each.name) for each in rendered.models)
    for each in rendered.models:
        output.notify(f"  {each.name:{width}}  {each.title}")
    quantization = declaration.build.quantization
    for line in describe_serving(rendered, quantization, find_present_card(), find_host()):
        output.notify(line)
    output.notify(f"Import took {describe_stages(stages_s)}")
    return path


@accepts_name("model_name", complete=known_models)
@takes_options(model=_MODEL, engine=_ENGINE, build=_BUILD)
def build_model(
    *,
    model: OptionValues,
    file: FileOption = None,
    engine: OptionValues,
    build: OptionValues,
    build_option: BuildOptionsOption = None,
    force: RebuildOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fetch a model and build its engine without rendering a repository.

    Example:  tllm build -m demo --dry-run
    """
    sections = {"model": model, "engine": engine, "build": build}
    declaration = declare(file, build_option or [], sections)
    from trtllm_serve_cli.importing import importer
    from trtllm_serve_cli.importing.import_plan import plan_import
    from trtllm_serve_cli.paths import find_home

    home = find_home()
    if dry_run:
        plan = plan_import(declaration, home, is_dry_run=True)
        if as_json:
            output.show_json(plan.as_dict())
        else:
            _show_plan(plan, "No model repository is rendered")
        return
    with show_work() as display:
        built = importer.build_model(declaration, home, force=force, display=display)
    if as_json:
        output.show_json({"model": declaration.model.name, "engine": str(built.path)})
    else:
        output.notify(f"Engine: {built.path}")
        output.notify("Next: run `tllm import` with the same options")


def declare(
    file: Path | None, build_options: list[str], sections: dict[str, OptionValues]
) -> Declaration:
    """Return the declaration in `file`, overridden by `build_options` and by `sections`.

    `build_options` are the values of --build-option, and `sections` are the other options. If
    `file` is None, return a declaration with only the options. Raise `BadParameter` if `file` is
    None and the options do not contain the model name, or `BadInput` if the file or an option is
    not valid.
    """
    from trtllm_serve_cli.importing.declaration import (
        Declaration,
        override,
        read_declaration,
        with_absolute_paths,
    )
    from trtllm_serve_cli.repository.model.parameters import resolve_paths
    from trtllm_serve_cli.yaml_schema import parse_text_fields

    if file is not None:
        declared = read_declaration(file)
    elif "name" in sections["model"]:
        declared = Declaration(ModelSection(sections["model"]["name"]))
    else:
        raise typer.BadParameter(
            "No model was specified. Pass NAME, or pass a tllm.yaml file with -f FILE."
        )
    words = parse_pairs(build_options, option="--build-option ", example="gemm_plugin=auto")
    flags = _take_flags(words)
    named = parse_text_fields(EngineOptions, words, where="--build-option")
    if flags:
        named["flags"] = flags
    overrides = {**sections, "build": {**named, **sections["build"]}}
    if parameters := overrides.get("repository", {}).get("parameters"):
        overrides["repository"]["parameters"] = resolve_paths(parameters, Path.cwd())
    declared = override(declared, overrides)
    return replace(declared, build=with_absolute_paths(declared.build, Path.cwd()))


def _take_flags(words: dict[str, str]) -> dict[str, str]:
    """Remove the TensorRT-LLM flags from `words` and return the removed flags."""
    options = {each.name for each in _BUILD}
    others = [name for name in words if name not in options]
    if not others:
        return {}
    from trtllm_serve_cli.build.tensorrt.flags import is_flag

    return {name: words.pop(name) for name in others if is_flag(name)}


def _show_plan(plan: ImportPlan, last: str) -> None:
    print(f"{plan.describe()}\n{last}.")


def notify_unused(names: Iterable[str], engine_kind: str) -> None:
    """Print a line for each parameter in `names` that does not apply to the engine kind."""
    from trtllm_serve_cli.repository.model.parameters import list_unused

    for each in list_unused(names, engine_kind):
        output.notify(
            f"The parameter {each.name} has no effect on {engine_kind} engines, because it "
            f"applies only to {' and '.join(each.engines)}."
        )
