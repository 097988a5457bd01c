"""`tllm load` and `tllm unload`: load and unload models in a running server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.completion import served_models
from trtllm_serve_cli.cli.shared.model_argument import accepts_name
from trtllm_serve_cli.cli.shared.target import ServerOption, parse_url

NameOption = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--model",
        metavar="NAME",
        help="Model to load or unload: an imported model with all its Triton models, or a single "
        "Triton model.",
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        min=1,
        max=86400,
        metavar="SECONDS",
        help="Time limit for loading or unloading each Triton model, in seconds. Before a loaded "
        "model is unloaded, the same limit applies to its requests in flight.",
    ),
]


@accepts_name("name", is_required=True)
def load(name: NameOption = None, url: ServerOption = None, timeout: TimeoutOption = 300.0) -> None:
    """Load a model into a server that was started with --model-control-mode explicit.

    If the model is already loaded, it is reloaded to apply changes made with `tllm set`.

    Example:  tllm load demo
    """
    from trtllm_serve_cli.launch.servers.control import find_controlled, load_models
    from trtllm_serve_cli.paths import find_home
    from trtllm_serve_cli.processes import exit_on_signals

    assert name is not None
    server = find_controlled(find_home(), name, parse_url(url))
    with exit_on_signals():
        load_models(server, name, timeout, on_model=_notify_each("Loading"))
    output.notify(f"Loaded {name}.")


@accepts_name("name", is_required=True, complete=served_models)
def unload(
    name: NameOption = None, url: ServerOption = None, timeout: TimeoutOption = 300.0
) -> None:
    """Unload a model after its requests in flight have finished.

    New requests for the model are rejected. Other models stay loaded.

    Example:  tllm unload demo
    """
    from trtllm_serve_cli.launch.servers.control import find_controlled, unload_models
    from trtllm_serve_cli.paths import find_home
    from trtllm_serve_cli.processes import exit_on_signals

    assert name is not None
    server = find_controlled(find_home(), name, parse_url(url))
    # Models reject requests while they are being unloaded. `exit_on_signals` turns a signal into an
    # exception, so that an interrupted `unload_models` can make the models accept requests again.
    with exit_on_signals():
        unload_models(server, name, timeout, on_model=_notify_each("Unloading"))
    output.notify(f"Unloaded {name}.")


def _notify_each(what: str) -> Callable[[str], None]:
    return lambda model: output.notify(f"{what} {model} …")
