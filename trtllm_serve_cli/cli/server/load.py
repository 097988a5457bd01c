"""`tllm load` and `tllm unload`: models that come and go while their server runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.target import ServerOption, parse_url

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="An imported model, with all it is made of; or one of Triton's alone."
    ),
]
TimeoutOption = Annotated[
    float, typer.Option(min=1, metavar="SECONDS", help="How long each of Triton's models may take.")
]


def load(name: NameArgument, url: ServerOption = None, timeout: TimeoutOption = 300.0) -> None:
    """Load a model into a server that was started with --model-control-mode explicit.

    One that is loaded is loaded anew, so that what `tllm set` has changed takes effect.

    Example:  tllm load demo
    """
    from trtllm_serve_cli.launch.servers.control import find_controlled, load_models
    from trtllm_serve_cli.paths import find_home
    from trtllm_serve_cli.processes import exit_on_signals

    server = find_controlled(find_home(), name, parse_url(url))
    with exit_on_signals():
        load_models(server, name, timeout, on_model=_notify_each("Loading"))
    output.notify(f"{name} is loaded.")


def unload(name: NameArgument, url: ServerOption = None, timeout: TimeoutOption = 300.0) -> None:
    """Unload a model, after its requests in flight; the server goes on with the others.

    Example:  tllm unload demo
    """
    from trtllm_serve_cli.launch.servers.control import find_controlled, unload_models
    from trtllm_serve_cli.paths import find_home
    from trtllm_serve_cli.processes import exit_on_signals

    server = find_controlled(find_home(), name, parse_url(url))
    # Whatever ends us, its models do not go on refusing requests.
    with exit_on_signals():
        unload_models(server, name, timeout, on_model=_notify_each("Unloading"))
    output.notify(f"{name} is unloaded.")


def _notify_each(what: str) -> Callable[[str], None]:
    return lambda model: output.notify(f"{what} {model} …")
