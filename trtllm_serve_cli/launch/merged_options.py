"""Merge launch options from the command line with launch options that models declare."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.option_fields import OptionField, option_fields

_LAST_PORT = 65535
_MPI_OPTIONS = ("world_size", "multi_model", "disable_spawn_processes", "oversubscribe")
_CONTAINER_OPTIONS = ("image", "container_engine")
# Maps mode-specific options to the modes in which they apply. In other modes, tllm ignores these
# options if a model declares them.
_MODES_OF = {
    # Container mode also starts the ranks with mpirun, but only on this machine, so a hostfile
    # applies only to mpi mode.
    **dict.fromkeys(_MPI_OPTIONS, ("mpi", "container")),
    "hostfile": ("mpi",),
    **dict.fromkeys(_CONTAINER_OPTIONS, ("container", "auto")),
}


def choose_options(
    overrides: Mapping[str, Any], declared: Mapping[str, Mapping[str, Any]]
) -> LaunchOptions:
    """Merge the options from `overrides`, the models' declarations and the defaults.

    `overrides` take precedence over declarations, and declarations over defaults. `declared` maps
    model names to declared options. Ignore declared options that do not apply to the launch mode.

    Raise `BadInput` if two models declare different values for an option that `overrides` does not
    contain. Also raise `BadInput` if `overrides` contains container options for a mode without
    containers.
    """
    merged: dict[str, tuple[str, Any]] = {}
    modes = (
        [overrides.get("mode")]
        if overrides.get("mode")
        else [d.get("mode") for d in declared.values()]
    )
    for model, options in declared.items():
        for name, value in options.items():
            if not {*_MODES_OF.get(name, modes)} & {*modes}:
                continue
            first_model, first_value = merged.setdefault(name, (model, value))
            if name not in overrides and first_value != value:
                raise BadInput(
                    f"{first_model} and {model} declare conflicting launch options.",
                    why=f"launch.{name} is {first_value} for {first_model} and {value} for {model}",
                    next_step="override the option, for example with "
                    f"{format_option(name, first_value)}",
                )
    chosen = {**{name: value for name, (_, value) in merged.items()}, **overrides}
    chosen = {**_ports_after(chosen.get("http_port")), **chosen}
    if chosen.get("mode") not in _MODES_OF["image"]:
        _check_no_container(chosen)
    fields = {each.name: each for each in option_fields(LaunchOptions)}
    return LaunchOptions(**{name: _convert(fields[name], value) for name, value in chosen.items()})


def _ports_after(http_port: int | None) -> dict[str, int]:
    """Derive the other ports from the HTTP port, with the same offsets as the default ports.

    If the OpenAI port would exceed 65535, use the HTTP port plus 3 instead. Omit ports that exceed
    65535. Return no ports if the HTTP port is None.
    """
    if http_port is None:
        return {}
    shifts = {"grpc_port": 1, "metrics_port": 2, "openai_port": 1000}
    moved = {name: http_port + shift for name, shift in shifts.items()}
    if moved["openai_port"] > _LAST_PORT:
        moved["openai_port"] = http_port + 3
    return {name: port for name, port in moved.items() if port <= _LAST_PORT}


def _convert(field: OptionField, value: Any) -> Any:
    """Convert a value from YAML or JSON to the type of `field`."""
    if field.kind is Path and value is not None:
        return Path(value)
    return tuple(value) if isinstance(value, list) else value


def format_option(name: str, value: Any) -> str:
    """Format an option and its value as `tllm start` arguments."""
    option = name.removesuffix("_s").replace("_", "-")
    if isinstance(value, bool):
        return f"--{'' if value else 'no-'}{option}"
    if name == "triton_args":
        return shlex.join(("--", *value))
    values = value if isinstance(value, list | tuple) else (value,)
    return " ".join(f"--{option} {shlex.quote(str(each))}" for each in values)


def _check_no_container(chosen: Mapping[str, Any]) -> None:
    if flags := [f"--{name.replace('_', '-')}" for name in _CONTAINER_OPTIONS if chosen.get(name)]:
        raise BadInput(
            f"{' and '.join(flags)} {'require' if len(flags) > 1 else 'requires'} container mode.",
            why=f"the server runs in {chosen.get('mode') or 'local'} mode",
            next_step="add --mode container",
        )
