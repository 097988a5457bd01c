"""Complete model names, parameter names, server addresses and GPUs in the shell.

Completions run when the user presses Tab, so they must be fast and must not print anything. If an
error occurs, they return no suggestions. Except for `gpu_indices`, which runs nvidia-smi, the
functions read only small files.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import io
import json
from collections.abc import Callable, Iterable
from typing import Annotated, Any, get_args

from trtllm_serve_cli.cli.shared.option_signature import with_signature

Completion = Callable[[str], list[str]]


def completion(list_words: Callable[[], Iterable[str]]) -> Completion:
    """Turn a function that lists words into a completion function for Typer."""

    @functools.wraps(list_words)
    def complete(incomplete: str) -> list[str]:
        with (
            contextlib.suppress(Exception),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            return sorted({each for each in list_words() if each.startswith(incomplete)})
        return []

    # Without `__wrapped__`, Typer inspects the signature of `complete`, not of `list_words`.
    del vars(complete)["__wrapped__"]
    complete.__annotations__ = {"incomplete": str}
    return complete


@completion
def imported_models() -> list[str]:
    """List the names of the imported models."""
    from trtllm_serve_cli.paths import find_home
    from trtllm_serve_cli.repository.model.store import list_names

    return list_names(find_home())


@completion
def known_models() -> list[str]:
    """List the catalog aliases and the names of the imported models."""
    from trtllm_serve_cli.catalog.entries import load_catalog

    return [*load_catalog(), *imported_models("")]


def _read_plans() -> list[dict[str, Any]]:
    """Return the plans of all servers not marked as stopped, even if their processes have died."""
    from trtllm_serve_cli.launch.server_state import PLAN_FILE, read_state
    from trtllm_serve_cli.paths import find_home

    plans = []
    for path in find_home().servers.glob(f"*/{PLAN_FILE}"):
        state = read_state(path.parent)
        if state is None or state.phase != "stopped":
            plans.append(json.loads(path.read_bytes()))
    return plans


@completion
def served_models() -> list[str]:
    """List the models of all servers not marked as stopped."""
    return [name for plan in _read_plans() for name in plan["models"]]


def addresses(*interfaces: str) -> Completion:
    """Return a completion function for the addresses of all servers not marked as stopped.

    `interfaces` selects the addresses to suggest, for example "grpc".
    """

    @completion
    def list_addresses() -> list[str]:
        return [plan["endpoint"][each] for plan in _read_plans() for each in interfaces]

    return list_addresses


def gpu_indices(incomplete: str) -> list[str]:
    """Complete the last GPU index in a comma-separated list."""
    chosen, comma, _ = incomplete.rpartition(",")

    @completion
    def list_indices() -> list[str]:
        from trtllm_serve_cli.sizing.gpus import find_gpus

        indices = {str(gpu.index) for gpu in find_gpus()} - set(chosen.split(","))
        return [f"{chosen}{comma}{index}" for index in indices]

    return list_indices(incomplete)


@completion
def settings() -> list[str]:
    """List the imported models, and the parameters that can be set, as `NAME=`."""
    from trtllm_serve_cli.repository.model.parameters import load_parameters

    parameters = load_parameters().values()
    return [*imported_models(""), *(f"{each.name}=" for each in parameters if not each.is_fact)]


def completes(
    **completions: Completion,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add shell completion to a command. `completions` is keyed by parameter name."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(function, eval_str=True).parameters
        replaced = {
            name: [with_completion(parameters[name], complete)]
            for name, complete in completions.items()
        }

        def command(**values: Any) -> None:
            function(**values)

        return with_signature(function, command, replaced)

    return decorate


def with_completion(parameter: inspect.Parameter, complete: Completion) -> inspect.Parameter:
    """Return a copy of a command's parameter that uses `complete` for shell completion."""
    kind, declared = get_args(parameter.annotation)
    completed = copy.copy(declared)
    completed.autocompletion = complete
    return parameter.replace(annotation=Annotated[kind, completed])
