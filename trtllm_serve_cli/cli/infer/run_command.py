"""`tllm run`: import and start a model if necessary, then send a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from trtllm_serve_cli.cli.infer.infer_options import InferOptions
from trtllm_serve_cli.cli.infer.run_plan import RunPlan, list_words
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.completion import completes, known_models
from trtllm_serve_cli.cli.shared.option_signature import OptionValues, takes_options
from trtllm_serve_cli.cli.shared.options import DryRunOption
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.importing.sections import EngineSection, ModelSection
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.option_fields import option_fields

if TYPE_CHECKING:
    from trtllm_serve_cli.launch.servers.running import RunningServer
    from trtllm_serve_cli.paths import Home

_MODEL = option_fields(ModelSection, "source")
_ENGINE = option_fields(EngineSection, "kind")
_LAUNCH = option_fields(LaunchOptions, "http_port")
_REQUEST = option_fields(GenerateRequest, "max_tokens", "temperature", "seed")
_SYSTEM = option_fields(InferOptions, "system")


@completes(words=known_models, name=known_models)
@takes_options(model=_MODEL, engine=_ENGINE, launch=_LAUNCH, request=_REQUEST, options=_SYSTEM)
def run(
    *,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME] [PROMPT]",
            help="Model name (a catalog alias, an imported model, or any name if -s is set), "
            "followed by the prompt to send. Without PROMPT, no prompt is sent.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--model",
            metavar="NAME",
            help="Model name, as an alternative to the NAME argument. With -m, pass only PROMPT "
            "as an argument.",
        ),
    ] = None,
    model: OptionValues,
    engine: OptionValues,
    launch: OptionValues,
    request: OptionValues,
    options: OptionValues,
    dry_run: DryRunOption = False,
) -> None:
    """Send a prompt to a model, importing and starting the model if necessary.

    The server keeps running until `tllm stop`. Without PROMPT, the server's addresses are printed.
    The options -s and --engine apply only if the model has not been imported. --http-port applies
    only if no server is running for the model. --dry-run prints the equivalent commands.

    Example:  tllm run demo "What is ML?"
    """
    from trtllm_serve_cli.paths import find_home

    home = find_home()
    name, prompt = _split(words or [], name)
    # Reject an unknown name before locking, so that no lock file is created for the name.
    imports, starts = _find_missing_steps(home, name, model)
    if dry_run:
        plan = RunPlan(
            name=name,
            prompt=prompt,
            imports=imports,
            starts=starts,
            import_options=[*list_words(_MODEL, model), *list_words(_ENGINE, engine)],
            start_options=list_words(_LAUNCH, launch),
            infer_options=[*list_words(_SYSTEM, options), *list_words(_REQUEST, request)],
        )
        print(plan.describe())
        return
    with _wait_for_other_commands(home, name):
        imports, starts = _find_missing_steps(home, name, model)
        if imports:
            _import(home, {"model": {"name": name, **model}, "engine": engine, "build": {}})
        if starts:
            _start(home, name, launch, suggests_prompt=prompt is None)
    if prompt is not None:
        from trtllm_serve_cli.cli.infer.infer_command import send_prompt

        send_prompt(prompt, name, InferOptions(**options), request)
    elif (running := _find_running(home, name)) is not None and not starts:
        from trtllm_serve_cli.cli.server.start import notify_addresses, notify_next_prompt

        notify_addresses(running)
        notify_next_prompt(running)
    if prompt is None or starts:
        output.notify(f"The server keeps running. To stop the server, run `tllm stop {name}`.")


def _split(words: list[str], name: str | None) -> tuple[str, str | None]:
    """Return the model name and the prompt. With -m, a single word is the prompt."""
    if name is not None:
        words = [name, *words]
    if not words:
        raise typer.BadParameter("No model was specified. Pass NAME.", param_hint="NAME")
    if len(words) > 2:
        raise typer.BadParameter(
            "The prompt must be a single argument. Put the prompt in quotes.", param_hint="PROMPT"
        )
    return words[0], words[1] if len(words) == 2 else None


def _find_missing_steps(home: Home, name: str, model: OptionValues) -> tuple[bool, bool]:
    """Return whether the model must be imported and whether its server must be started.

    Raise `UnknownModel` if the model is not imported and its source is unknown.
    """
    if _find_running(home, name) is not None:
        return False, False
    return not _is_imported(home, name, model), True


@contextmanager
def _wait_for_other_commands(home: Home, name: str) -> Iterator[None]:
    """Wait until no other command is importing or starting the model.

    Other `tllm run` commands for the model wait until the `with` block ends.
    """
    from trtllm_serve_cli.importing.importer import hold_import_lock
    from trtllm_serve_cli.launch.servers.starting import wait_for_starts
    from trtllm_serve_cli.paths import check_model_name, hold_lock

    def notify() -> None:
        output.notify(f"Waiting for another tllm process that is starting {name} …")

    # Prevent another `tllm run` from starting the server between this command's import and start.
    lock = home.locks / f"{check_model_name(name)}.run.lock"
    with hold_lock(lock, notify):
        with hold_import_lock(home, name, output.notify):
            pass
        wait_for_starts(home, name, notify)
        yield


def _find_running(home: Home, name: str) -> RunningServer | None:
    from trtllm_serve_cli.launch.servers.running import find_servers

    return next((each for each in find_servers(home, name) if each.is_running), None)


def _is_imported(home: Home, name: str, model: OptionValues) -> bool:
    """Return whether the model is imported.

    Raise `UnknownModel` if the model is not imported and its source is unknown.
    """
    from trtllm_serve_cli.importing.import_plan import find_source
    from trtllm_serve_cli.repository.model.store import find_model

    if find_model(home, name) is not None:
        return True
    if "source" not in model:
        find_source(name, home)
    return False


def _import(home: Home, sections: dict[str, OptionValues]) -> None:
    from trtllm_serve_cli.cli.models.import_command import declare, import_and_notify
    from trtllm_serve_cli.importing.import_checks import find_path_problem

    declaration = declare(None, [], sections)
    if problem := find_path_problem(declaration, home):
        raise problem
    import_and_notify(declaration, home)


def _start(home: Home, name: str, launch: OptionValues, *, suggests_prompt: bool) -> None:
    from trtllm_serve_cli.cli.server.start import launch_and_notify, prepare_and_notify
    from trtllm_serve_cli.launch.planning.local_plan import plan_for_this_machine

    plan = plan_for_this_machine(home, [name], launch)
    prepare_and_notify(plan)
    launch_and_notify(plan, suggests_prompt=suggests_prompt)
