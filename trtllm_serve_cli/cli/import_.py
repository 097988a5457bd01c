"""`tllm import` and `tllm build`: from a name to an engine, and on to a model repository."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtllm_serve_cli.cli import output
from trtllm_serve_cli.cli.options import (
    DryRunOption,
    EngineDirOption,
    EngineKind,
    EngineOption,
    ForceOption,
    JsonOption,
    Layout,
    NameOption,
    PickleOption,
    QuantizationOption,
    RevisionOption,
    SourceOption,
    TrustOption,
)
from trtllm_serve_cli.errors import BadInput

if TYPE_CHECKING:
    from trtllm_serve_cli.importing import ImportPlan


def import_model(
    name: NameOption,
    source: SourceOption = None,
    engine: EngineOption = EngineKind.auto,
    quantization: QuantizationOption = None,
    layout: Annotated[
        Layout,
        typer.Option(help="Upstream's two, or that of Triton's own vLLM backend: docs/layouts.md."),
    ] = Layout.inflight,
    max_batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Requests at once. Default: 64, or as the engine was built."),
    ] = None,
    max_seq_len: Annotated[
        int | None, typer.Option(min=2, help="Prompt and answer together, in tokens.")
    ] = None,
    max_num_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of all requests in one engine step. Default: 256."),
    ] = None,
    max_beam_width: Annotated[
        int | None,
        typer.Option(min=1, help="Widest beam search. Default: 4, or as the engine was built."),
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="One of upstream's template parameters."),
    ] = None,
    repo: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the model repository goes, if not TLLM_HOME."),
    ] = None,
    engine_dir: EngineDirOption = None,
    revision: RevisionOption = None,
    trust_remote_code: TrustOption = False,
    allow_pickle: PickleOption = False,
    force: ForceOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fetch a model, build its engine, render its repository.

    What is there already is used again, so running it twice does no harm.

    Example:  tllm import -m demo

    Example:  tllm import -m mine -s gguf:./model.gguf --max-batch-size 16
    """
    from trtllm_serve_cli import importing
    from trtllm_serve_cli.paths import find_home
    from trtllm_serve_cli.repository import ServingOptions
    from trtllm_serve_cli.sources import FetchOptions

    request = importing.ImportRequest(
        name=name,
        source=source,
        engine=engine.value,
        quantization=quantization.value if quantization else None,
        engine_dir=engine_dir.absolute() if engine_dir else None,
        repository=repo.absolute() if repo else None,
        fetch=FetchOptions(revision, trust_remote_code, allow_pickle),
        serving=ServingOptions(
            max_batch_size=max_batch_size,
            max_seq_len=max_seq_len,
            max_num_tokens=max_num_tokens,
            max_beam_width=max_beam_width,
            parameters=parse_parameters(param or []),
            layout=layout.value,
        ),
    )
    home = find_home()
    if dry_run:
        plan = importing.plan_import(request, home)
        _show_plan(plan, f"Render the model repository {plan.repository}", as_json=as_json)
        return
    with _progress() as on_line:
        rendered, path = importing.import_model(
            request, home, force=force, say=output.say, on_line=on_line
        )
    if as_json:
        output.show_json(
            {"model": name, "engine": str(rendered.engine.path), "repository": str(path)}
        )
    else:
        say_idle(request.serving.parameters, rendered.engine.kind)
        output.say(f"Model repository: {path}")
        which = f"--repo {shlex.quote(str(path))}" if repo else f"-m {name}"
        output.say(f"Next: tllm start {which}")


def build_model(
    name: NameOption,
    source: SourceOption = None,
    engine: EngineOption = EngineKind.auto,
    quantization: QuantizationOption = None,
    engine_dir: EngineDirOption = None,
    revision: RevisionOption = None,
    trust_remote_code: TrustOption = False,
    allow_pickle: PickleOption = False,
    force: ForceOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fetch a model and build its engine; render nothing.

    Example:  tllm build -m demo --dry-run
    """
    from trtllm_serve_cli import importing
    from trtllm_serve_cli.paths import find_home
    from trtllm_serve_cli.sources import FetchOptions

    request = importing.ImportRequest(
        name=name,
        source=source,
        engine=engine.value,
        quantization=quantization.value if quantization else None,
        engine_dir=engine_dir.absolute() if engine_dir else None,
        fetch=FetchOptions(revision, trust_remote_code, allow_pickle),
    )
    home = find_home()
    if dry_run:
        _show_plan(importing.plan_import(request, home), "Render nothing", as_json=as_json)
        return
    with _progress() as on_line:
        built = importing.build_model(request, home, force=force, say=output.say, on_line=on_line)
    if as_json:
        output.show_json({"model": name, "engine": str(built.path)})
    else:
        output.say(f"Engine: {built.path}")
        output.say(f"Next: tllm import -m {name}")


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


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Shows the last line of a running step on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda line: None
        return
    from rich.text import Text

    with output.console(stderr=True).status("") as status:
        yield lambda line: status.update(Text(line.strip()[-70:], style="dim"))


def say_idle(names: Iterable[str], engine_kind: str) -> None:
    """Tell which of the parameters the engine kind does not heed."""
    from trtllm_serve_cli.repository.parameters import list_idle

    for each in list_idle(names, engine_kind):
        output.say(
            f"{each.name} has no effect on the engine kind {engine_kind}: only "
            f"{' and '.join(each.engines)} heeds it."
        )
