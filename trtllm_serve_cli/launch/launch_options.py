"""How a server is wanted: what `tllm start` is told, and what models declare."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_serve_cli.choices import (
    ContainerEngine,
    LaunchMode,
    LogFormat,
    ModelControlMode,
    RequestLogging,
)
from trtllm_serve_cli.errors import BadInput

# How long requests in flight have, in seconds, when a server is stopped and nobody says otherwise.
DRAIN_S = 30


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """Where the server answers, and how long it may take to become ready, in seconds.

    `gpus` are those it may use, as CUDA_VISIBLE_DEVICES has them. `image` and `container_engine`
    are of containers, and follow from the engine and from what is installed where they are None.
    From `world_size` on it is of `mpirun`, here or in a container, by the names of upstream's
    launch script; `world_size` follows from the engine where it is None. From `model_control_mode`
    on it is Triton's, by the names of its own options; `load_model` are imported models, all of
    them where it is empty, and `triton_args` are words as Triton has them. The last three are what
    our models log, and where spans go.
    """

    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    timeout_s: float = 300.0
    log_verbose: int = 0
    mode: LaunchMode = "local"
    gpus: str | None = None
    image: str | None = None
    container_engine: ContainerEngine | None = None
    world_size: int | None = None
    multi_model: bool = False
    disable_spawn_processes: bool = False
    oversubscribe: bool = False
    hostfile: Path | None = None
    model_control_mode: ModelControlMode = "none"
    load_model: tuple[str, ...] = ()
    cache_config: str | None = None
    trace_config: tuple[str, ...] = ()
    grpc_server_cert: Path | None = None
    grpc_server_key: Path | None = None
    grpc_root_cert: Path | None = None
    triton_args: tuple[str, ...] = ()
    log_format: LogFormat = "text"
    log_requests: RequestLogging = "no"
    otlp_endpoint: str | None = None


# What only servers of some modes take: declared for those, it means nothing in another.
_OF_MPI = ("world_size", "multi_model", "disable_spawn_processes", "oversubscribe")
_OF_CONTAINERS = ("image", "container_engine")
_MEANT_FOR = {
    # A container's ranks are started by mpirun as well, but on this machine alone.
    **dict.fromkeys(_OF_MPI, ("mpi", "container")),
    "hostfile": ("mpi",),
    **dict.fromkeys(_OF_CONTAINERS, ("container", "auto")),
}
_PATHS = ("hostfile", "grpc_server_cert", "grpc_server_key", "grpc_root_cert")


def choose_options(
    given: Mapping[str, Any], declared: Mapping[str, Mapping[str, Any]]
) -> LaunchOptions:
    """What was `given` now, or else what the models declared for that mode, or else the defaults.

    `declared` is by the model's name. Raises `BadInput` where models of one server disagree, and
    for a container's options without one.
    """
    said: dict[str, tuple[str, Any]] = {}
    modes = [given.get("mode")] if given.get("mode") else [d.get("mode") for d in declared.values()]
    for model, options in declared.items():
        for name, value in options.items():
            if not {*_MEANT_FOR.get(name, modes)} & {*modes}:
                continue
            other, known = said.setdefault(name, (model, value))
            if name not in given and known != value:
                raise BadInput(
                    f"{other} and {model} cannot be served together as they were declared.",
                    why=f"launch.{name} is {known} for one and {value} for the other",
                    next_step=f"say it now: {_spell(name, known)}",
                )
    chosen = {**{name: value for name, (_, value) in said.items()}, **given}
    if chosen.get("mode") not in _MEANT_FOR["image"]:
        _check_no_container(chosen)
    return LaunchOptions(**{name: _typed(name, value) for name, value in chosen.items()})


def _typed(name: str, value: Any) -> Any:
    """`value`, which is plain data where it was declared."""
    if name in _PATHS and value is not None:
        return Path(value)
    return tuple(value) if isinstance(value, list) else value


def _spell(name: str, value: Any) -> str:
    """The option as `tllm start` takes it."""
    option = name.removesuffix("_s").replace("_", "-")
    if isinstance(value, bool):
        return f"--{'' if value else 'no-'}{option}"
    if name == "triton_args":
        return shlex.join(("--", *value))
    values = value if isinstance(value, list | tuple) else (value,)
    return " ".join(f"--{option} {shlex.quote(str(each))}" for each in values)


def _check_no_container(chosen: Mapping[str, Any]) -> None:
    if said := [f"--{name.replace('_', '-')}" for name in _OF_CONTAINERS if chosen.get(name)]:
        raise BadInput(
            f"{' and '.join(said)} {'are' if len(said) > 1 else 'is'} for servers in containers.",
            why=f"this one is to run in the mode {chosen.get('mode') or 'local'}",
            next_step="add --mode container",
        )
