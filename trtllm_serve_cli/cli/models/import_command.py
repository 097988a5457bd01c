"""`tllm import` and `tllm build`: from a name to an engine, and on to a model repository."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtllm_serve_cli.choices import Layout
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.options import (
    BuildOptionsOption,
    DryRunOption,
    DtypeOption,
    EngineDirOption,
    EngineOption,
    FileOption,
    ForceOption,
    JsonOption,
    KvCacheOption,
    MaxBatchSizeOption,
    MaxBeamWidthOption,
    MaxInputLenOption,
    MaxNumTokensOption,
    MaxSeqLenOption,
    MoeEpOption,
    MoeTpOption,
    NameOption,
    PickleOption,
    PpOption,
    QuantizationOption,
    RevisionOption,
    SimulatedGpuOption,
    SourceOption,
    TimingOption,
    TpOption,
    TrustOption,
    VersionOption,
)
from trtllm_serve_cli.cli.shared.progress_ui import show_work
from trtllm_serve_cli.errors import BadInput

if TYPE_CHECKING:
    from trtllm_serve_cli.importing.declaration import Declaration
    from trtllm_serve_cli.importing.import_plan import ImportPlan


def import_model(
    name: NameOption = None,
    file: FileOption = None,
    source: SourceOption = None,
    revision: RevisionOption = None,
    trust_remote_code: TrustOption = False,
    allow_pickle: PickleOption = False,
    engine: EngineOption = None,
    trtllm_version: VersionOption = None,
    engine_dir: EngineDirOption = None,
    gpu: SimulatedGpuOption = None,
    timing: TimingOption = None,
    dtype: DtypeOption = None,
    quantization: QuantizationOption = None,
    kv_cache_dtype: KvCacheOption = None,
    tp: TpOption = None,
    pp: PpOption = None,
    moe_tp: MoeTpOption = None,
    moe_ep: MoeEpOption = None,
    max_batch_size: MaxBatchSizeOption = None,
    max_input_len: MaxInputLenOption = None,
    max_seq_len: MaxSeqLenOption = None,
    max_num_tokens: MaxNumTokensOption = None,
    max_beam_width: MaxBeamWidthOption = None,
    build_option: BuildOptionsOption = None,
    layout: Annotated[
        Layout | None,
        typer.Option(help="Upstream's two, or that of Triton's own vLLM backend: docs/layouts.md."),
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="One of upstream's template parameters."),
    ] = None,
    repo: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the model repository goes, if not TLLM_HOME."),
    ] = None,
    force: ForceOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fetch a model, build its engine, render its repository.

    What is there already is used again, and what `tllm set` changed is kept, so running it twice
    does no harm.

    Example:  tllm import -m demo

    Example:  tllm import -m mine -s gguf:./model.gguf --max-batch-size 16
    """
    asked = _declare(locals())
    from trtllm_serve_cli.importing import importer
    from trtllm_serve_cli.importing.import_plan import plan_import
    from trtllm_serve_cli.paths import find_home

    home = find_home()
    if dry_run:
        plan = plan_import(asked, home)
        last = [*plan.preserved.describe(), f"Render the model repository {plan.repository}"]
        _show_plan(plan, "\n".join(last), as_json=as_json)
        return
    with show_work() as display:
        rendered, path = importer.import_model(asked, home, force=force, display=display)
    name = asked.model.name
    if as_json:
        output.show_json(
            {"model": name, "engine": str(rendered.engine.path), "repository": str(path)}
        )
    else:
        notify_unused(asked.repository.parameters, rendered.engine.kind)
        output.notify(f"Model repository: {path}")
        which = f"--repo {shlex.quote(str(path))}" if asked.repository.dir else f"-m {name}"
        output.notify(f"Next: tllm start {which}")


def build_model(
    name: NameOption = None,
    file: FileOption = None,
    source: SourceOption = None,
    revision: RevisionOption = None,
    trust_remote_code: TrustOption = False,
    allow_pickle: PickleOption = False,
    engine: EngineOption = None,
    trtllm_version: VersionOption = None,
    engine_dir: EngineDirOption = None,
    gpu: SimulatedGpuOption = None,
    timing: TimingOption = None,
    dtype: DtypeOption = None,
    quantization: QuantizationOption = None,
    kv_cache_dtype: KvCacheOption = None,
    tp: TpOption = None,
    pp: PpOption = None,
    moe_tp: MoeTpOption = None,
    moe_ep: MoeEpOption = None,
    max_batch_size: MaxBatchSizeOption = None,
    max_input_len: MaxInputLenOption = None,
    max_seq_len: MaxSeqLenOption = None,
    max_num_tokens: MaxNumTokensOption = None,
    max_beam_width: MaxBeamWidthOption = None,
    build_option: BuildOptionsOption = None,
    force: ForceOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fetch a model and build its engine; render nothing.

    Example:  tllm build -m demo --dry-run
    """
    asked = _declare(locals())
    from trtllm_serve_cli.importing import importer
    from trtllm_serve_cli.importing.import_plan import plan_import
    from trtllm_serve_cli.paths import find_home

    home = find_home()
    if dry_run:
        _show_plan(plan_import(asked, home), "Render nothing", as_json=as_json)
        return
    with show_work() as display:
        built = importer.build_model(asked, home, force=force, display=display)
    if as_json:
        output.show_json({"model": asked.model.name, "engine": str(built.path)})
    else:
        output.notify(f"Engine: {built.path}")
        output.notify("Next: tllm import with the same options")


# Option -> where the declaration has it, if not under that name in `build`.
_PLACES = {
    "name": ("model", "name"),
    "source": ("model", "source"),
    "revision": ("model", "revision"),
    "trust_remote_code": ("model", "trust_remote_code"),
    "allow_pickle": ("model", "allow_pickle"),
    "engine": ("engine", "kind"),
    "trtllm_version": ("engine", "trtllm_version"),
    "engine_dir": ("engine", "dir"),
    "gpu": ("engine", "gpu"),
    "timing": ("engine", "timing"),
    "layout": ("repository", "layout"),
    "param": ("repository", "parameters"),
    "repo": ("repository", "dir"),
}
_ELSEWHERE = {"file", "force", "dry_run", "as_json", "build_option"}


def _declare(given: Mapping[str, Any]) -> Declaration:
    """What the file of -f and the options say together; `given` are a command's arguments."""
    from trtllm_serve_cli.build.engine_options import EngineOptions
    from trtllm_serve_cli.importing.declaration import (
        Declaration,
        ModelSection,
        override,
        read_declaration,
        with_absolute_paths,
    )
    from trtllm_serve_cli.yaml_schema import parse_words

    if given["file"] is not None:
        said = read_declaration(given["file"])
    elif given["name"] is not None:
        said = Declaration(ModelSection(given["name"]))
    else:
        raise typer.BadParameter("name a model: -m NAME, or a file that says it: -f tllm.yaml")
    words = parse_parameters(given["build_option"] or [], option="--build-option ")
    sections: dict[str, dict[str, Any]] = {name: {} for name in ("model", "engine", "repository")}
    sections["build"] = parse_words(EngineOptions, words, where="--build-option")
    for option, value in given.items():
        # A switch can be turned on here, and only be turned off in the file.
        if option in _ELSEWHERE or value is None or value is False:
            continue
        section, field = _PLACES.get(option, ("build", option))
        sections[section][field] = _as_declared(value)
    asked = override(said, sections)
    return replace(asked, build=with_absolute_paths(asked.build, Path.cwd()))


def _as_declared(value: Any) -> Any:
    match value:
        case Path():
            return value.absolute()
        case list():
            from trtllm_serve_cli.repository.model.parameters import with_paths_from

            return with_paths_from(parse_parameters(value), Path.cwd())
    return value


def parse_parameters(given: list[str], *, option: str = "--param ") -> dict[str, str]:
    """KEY=VALUE words as a dictionary. Raises `BadInput` for a word that is none."""
    parameters = {}
    for word in given:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise BadInput(
                f"{option}{word!r} is not KEY=VALUE.",
                next_step=f"for example {option}enable_kv_cache_reuse=false",
            )
        parameters[key.strip()] = value.strip()
    return parameters


def _show_plan(plan: ImportPlan, last: str, *, as_json: bool) -> None:
    if as_json:
        output.show_json(plan.as_dict())
    else:
        print(f"{plan.describe()}\n{last}.")


def notify_unused(names: Iterable[str], engine_kind: str) -> None:
    """Tell which of the parameters the engine kind does not heed."""
    from trtllm_serve_cli.repository.model.parameters import list_unused

    for each in list_unused(names, engine_kind):
        output.notify(
            f"{each.name} has no effect on the engine kind {engine_kind}: only "
            f"{' and '.join(each.engines)} heeds it."
        )
