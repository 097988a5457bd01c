"""Load and unload models on a running server in explicit model control mode."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence

from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.server import change_model, fetch_index
from trtllm_serve_cli.errors import BadInput, RequestFailed, TimedOut
from trtllm_serve_cli.launch.merged_options import format_option
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan, LaunchRequest
from trtllm_serve_cli.launch.servers.live_status import watch_in_flight
from trtllm_serve_cli.launch.servers.running import RunningServer, find_running, find_servers
from trtllm_serve_cli.launch.triton.drain import draining, format_in_flight
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository.planning.combined import write_combination

_POLL_S = 0.2
# The Triton models to load first, in this order, because other models call them.
_LOAD_ORDER = ("tensorrt_llm", "preprocessing", "postprocessing")
_BUSY = ("READY", "LOADING", "UNLOADING")


def find_controlled(home: Home, name: str, address: str | None = None) -> RunningServer:
    """Return the running server that can load and unload the model `name`.

    `name` is the name of an imported model or of a Triton model. If `address` is set, consider only
    servers that listen on `address`. Raise `NoServer` if no server is running, or if the choice
    between several running servers is ambiguous. Raise `BadInput` if the only running server does
    not have the model, or if the server is not in explicit model control mode.
    """
    candidates = [
        server
        for server in find_servers(home, None, address)
        if server.is_running and (name in server.models or name in server.plan.every_model)
    ]
    server = candidates[0] if len(candidates) == 1 else find_running(home, None, address)
    if not candidates:
        raise BadInput(
            f"The server does not have a model named {name!r}.",
            why=f"the server's models are {', '.join(server.plan.every_model)}",
            next_step="pass one of these models, or start a server with several models, for "
            "example `tllm start -m A -m B`",
        )
    if server.plan.model_control_mode != "explicit":
        raise BadInput(
            f"The server cannot load or unload {name}.",
            why="loading and unloading require --model-control-mode explicit, but the server runs "
            f"with --model-control-mode {server.plan.model_control_mode}",
            next_step=_suggest_explicit_mode(server),
        )
    return server


def _suggest_explicit_mode(server: RunningServer) -> str:
    """Return the step that starts the models in explicit mode, with the server's other options."""
    request = server.plan.request or LaunchRequest(server.models, (), {})
    # Arguments for Triton follow all options.
    options = {**request.overrides, "model_control_mode": "explicit"}
    names = sorted(options, key="triton_args".__eq__)
    start = " ".join(
        (
            "tllm start",
            *(f"-m {name}" for name in request.models),
            *(f"--repo {shlex.quote(str(path))}" for path in request.repositories),
            *(format_option(name, options[name]) for name in names),
        )
    )
    if server.job is not None:
        return f"start a server without Slurm, for example with `{start}`"
    return f"restart the server with `{server.stop_command} && {start}`"


def list_parts(plan: LaunchPlan, name: str) -> tuple[str, ...]:
    """List the Triton models of `name` in loading order. Unloading uses the reverse order."""
    parts = plan.parts_of(name) if name in plan.models else (name,)
    return tuple(sorted(parts, key=_rank))


def _rank(part: str) -> int:
    matches = (i for i, each in enumerate(_LOAD_ORDER) if part == each or part.endswith(f"_{each}"))
    return next(matches, len(_LOAD_ORDER))


def load_models(
    server: RunningServer, name: str, timeout_s: float, *, on_model: Callable[[str], None]
) -> None:
    """Load the model `name` with its current configuration.

    `timeout_s` is the time limit for loading or unloading each of the model's Triton models. If any
    of the Triton models is loaded, unload all of them first, because the old and the new engine may
    not fit in memory together.

    Raise `RequestFailed` if a Triton model cannot be loaded. Triton models that were loaded before
    the failure stay loaded. Raise `TimedOut` if unloading takes too long, `RepositoryError` if a
    `config.pbtxt` is not valid, or `NoServer` if the server cannot be reached.
    """
    plan = server.plan
    loaded = {each.name for each in fetch_index(plan.endpoint) if each.state == "READY"}
    if loaded.intersection(list_parts(plan, name)):
        unload_models(server, name, timeout_s, on_model=lambda part: None, is_reload=True)
    if plan.combined:
        write_combination(plan.combined, plan.repository)
    for part in list_parts(plan, name):
        on_model(part)
        for endpoint in _endpoints(plan):
            try:
                change_model(endpoint, part, "load", timeout_s)
            except RequestFailed as error:
                raise RequestFailed(
                    f"{part} could not be loaded.",
                    why=error.why,
                    next_step=f"run `tllm logs --source {part}` to read the model's log",
                ) from error


def unload_models(
    server: RunningServer,
    name: str,
    timeout_s: float,
    *,
    on_model: Callable[[str], None],
    is_reload: bool = False,
) -> None:
    """Unload the model `name` and wait until it is unloaded.

    First wait up to `timeout_s` for requests in flight to finish. Then unload each of the model's
    Triton models, and wait up to `timeout_s` for each Triton model. `is_reload` is true if the
    caller will load the model again.

    Raise `TimedOut` if a wait times out. If requests do not finish in time, the model stays loaded
    and the requests are not cancelled. Raise `NoServer` if the server cannot be reached, or
    `RequestFailed` if Triton rejects a request.
    """
    plan = server.plan
    parts = tuple(reversed(list_parts(plan, name)))
    with draining(plan.directory, parts):
        _wait_for_requests(plan, name, timeout_s, is_reload)
        for part in parts:
            on_model(part)
            for endpoint in _endpoints(plan):
                change_model(endpoint, part, "unload", timeout_s)
                _wait_until_gone(endpoint, part, timeout_s)


def _wait_for_requests(plan: LaunchPlan, name: str, timeout_s: float, is_reload: bool) -> None:
    """Wait for requests in flight. Raise `TimedOut` if they do not finish within `timeout_s`.

    Triton would otherwise abort the requests (see the `drain` module).
    """
    owner = next(each for each in plan.models if name == each or name in plan.parts_of(each))
    engines = set(plan.parts_of(owner))
    command, done = ("load", "reloaded") if is_reload else ("unload", "unloaded")
    deadline_s = time.monotonic() + timeout_s
    for in_flight in watch_in_flight(_endpoints(plan), engines):
        if in_flight != {} and time.monotonic() > deadline_s:
            raise TimedOut(
                f"{name} was not {done}, because requests were still in flight after "
                f"{timeout_s:g} s.",
                why=f"requests in flight: {format_in_flight(in_flight)}",
                next_step=f"run `tllm {command} {name} --timeout {2 * timeout_s:g}` to wait longer",
            )
        time.sleep(_POLL_S)


def _wait_until_gone(endpoint: Endpoint, part: str, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while any(each.name == part and each.state in _BUSY for each in fetch_index(endpoint)):
        if time.monotonic() > deadline_s:
            raise TimedOut(
                f"{part} was not unloaded within {timeout_s:g} s.",
                why="Triton is still unloading the model",
                next_step="run `tllm status` to check whether the model is unloaded",
            )
        time.sleep(_POLL_S)


def _endpoints(plan: LaunchPlan) -> Sequence[Endpoint]:
    return (plan.endpoint, *plan.replicas)
