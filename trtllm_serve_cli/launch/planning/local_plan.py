"""Plan how to serve imported models on this machine."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtllm_serve_cli.engine_kinds.registry import find_kind
from trtllm_serve_cli.engine_kinds.selection import detect_machine
from trtllm_serve_cli.errors import BadInput, MissingPart, TllmError
from trtllm_serve_cli.launch.containers.container import IN_IMAGE, ContainerSetup, plan_container
from trtllm_serve_cli.launch.containers.container_engine import find_container_host
from trtllm_serve_cli.launch.containers.deployment import check_engine_fits, describe_deployable
from trtllm_serve_cli.launch.launch_options import LaunchOptions, choose_options
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan, LaunchRequest, plan_launch
from trtllm_serve_cli.launch.topology.mpi import MpiHost, check_mpirun
from trtllm_serve_cli.launch.topology.ranks import parse_gpus
from trtllm_serve_cli.launch.triton.triton_install import (
    count_nvidia_gpus,
    find_libpython,
    find_triton,
    has_nvidia_gpu,
)
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository.model.instances import EngineInstances, read_instances
from trtllm_serve_cli.repository.model.model_repository import open_repository
from trtllm_serve_cli.repository.model.store import ImportedModel, load_model
from trtllm_serve_cli.repository.model.upstream_repository import read_repository
from trtllm_serve_cli.repository.planning.combined import plan_combination, prefixed
from trtllm_serve_cli.repository.validation.engine_limits import read_limits
from trtllm_serve_cli.repository.validation.validate import check_loadable


def plan_for_this_machine(
    home: Home,
    names: Sequence[str],
    overrides: Mapping[str, Any],
    *,
    repositories: Sequence[Path] = (),
) -> LaunchPlan:
    """Plan a server for the imported models `names` and the models in `repositories`.

    By default, serve the only imported model. A name may also refer to a model in `repositories`.
    `overrides` are fields of `LaunchOptions` that take precedence over the models' declarations.
    Raise `UnknownModel` if a model is not imported, `BadInput` if the models cannot be served
    together, and `MissingPart` if software is missing.
    """
    models = _load_models(home, names, repositories)
    options = choose_options(overrides, {model.name: model.launch for model in models})
    plan = (_plan_auto if options.mode == "auto" else _plan)(home, models, options)
    return replace(plan, request=_request(models, repositories, overrides))


def _plan_auto(home: Home, models: Sequence[ImportedModel], options: LaunchOptions) -> LaunchPlan:
    """Plan for the local Triton or, if it cannot serve the models, for a container.

    For a container, the plan's `reason` contains the error of the local plan.
    """
    local = replace(options, mode="local", image=None, container_engine=None)
    try:
        return _plan(home, models, local)
    except (BadInput, MissingPart) as error:
        local_error = error
    try:
        plan = _plan(home, models, replace(options, mode="container"))
    except TllmError as error:
        if error.what == local_error.what:  # The error does not depend on the mode.
            raise
        raise MissingPart(
            "Neither the local Triton nor a container can serve "
            f"{' and '.join(model.name for model in models)}.",
            why=f"{_one_line(local_error)}; {_one_line(error)}",
            next_step=f"{local_error.next_step}; alternatively, {error.next_step}",
        ) from error
    return replace(
        plan,
        reason=f"Using a container because local mode cannot be used: {_one_line(local_error)}",
    )


def _one_line(error: TllmError) -> str:
    return f"{error.what.removesuffix('.')} ({error.why})" if error.why else error.what


def _plan(home: Home, models: Sequence[ImportedModel], options: LaunchOptions) -> LaunchPlan:
    _check_engines_fit(models, options)
    setup = _plan_containers(models, options) if options.mode == "container" else None
    triton = IN_IMAGE if setup is not None else find_triton(os.environ)
    libpython_dir = find_libpython()
    if triton.backend_parts is not None and libpython_dir is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise MissingPart(
            f"Triton's Python stub needs libpython{version}.so.1.0.",
            why="neither this Python nor the system provides this library",
            next_step=f"run `apt-get install libpython{version}`, then run `tllm doctor` to check "
            "this machine",
        )
    return plan_launch(
        models,
        triton,
        options,
        servers=home.servers,
        token=secrets.token_urlsafe(24),
        combined=plan_combination([open_repository(model.path) for model in models])
        if len(models) > 1
        else (),
        engines=_read_engines(models),
        libpython_dir=libpython_dir or "",
        has_gpu=bool(setup.gpus) if setup is not None else has_nvidia_gpu(),
        mpi=_detect_mpi_host(options, setup),
        setup=setup,
    )


def _plan_containers(models: Sequence[ImportedModel], options: LaunchOptions) -> ContainerSetup:
    return plan_container(
        [describe_deployable(model, open_repository(model.path)) for model in models],
        find_container_host(options.container_engine),
        image=options.image,
        gpus=parse_gpus(options.gpus),
    )


def _request(
    models: Sequence[ImportedModel], repositories: Sequence[Path], overrides: Mapping[str, Any]
) -> LaunchRequest:
    folders = tuple(path.absolute() for path in repositories)
    return LaunchRequest(
        models=tuple(model.name for model in models if model.path not in folders),
        repositories=folders,
        # Store paths as strings, because the plan is saved as JSON.
        overrides={
            key: str(value) if isinstance(value, Path) else value
            for key, value in overrides.items()
        },
    )


def _check_engines_fit(models: Sequence[ImportedModel], options: LaunchOptions) -> None:
    machine = detect_machine()
    chosen = [int(gpu) for gpu in parse_gpus(options.gpus) if gpu.isdecimal()]
    if chosen:
        # Skip GPUs that this machine does not have.
        gpus = tuple(machine.gpus[index] for index in chosen if index < len(machine.gpus))
        machine = replace(machine, gpus=gpus)
    if options.mode == "container":
        # Ignore this machine's package versions, because the engine uses the packages in the image.
        machine = replace(machine, versions={})
    for model in models:
        check_engine_fits(model, machine, is_one_machine=options.hostfile is None)


def _read_engines(models: Sequence[ImportedModel]) -> list[EngineInstances]:
    """Return the engines that Triton's C++ backend runs."""
    engines = []
    for model in models:
        if not find_kind(model.engine_kind).runs_in_triton_backend:
            continue
        name = "tensorrt_llm" if len(models) == 1 else prefixed(model.name, "tensorrt_llm")
        limits = read_limits(model.engine_path)
        world_size = (limits.world_size if limits else None) or 1
        engine = read_instances(open_repository(model.path), world_size, name=name)
        engines += [engine] if engine is not None else []
    return engines


def _detect_mpi_host(options: LaunchOptions, setup: ContainerSetup | None) -> MpiHost:
    num_gpus = len(options.gpus.split(",")) if options.gpus else count_nvidia_gpus()
    if setup is not None:
        return MpiHost(setup.host.runs_as is None, num_gpus)
    if options.mode == "mpi":
        check_mpirun(os.environ)
    return MpiHost(os.geteuid() == 0, num_gpus)


def _load_models(
    home: Home, names: Sequence[str], repositories: Sequence[Path]
) -> list[ImportedModel]:
    opened = [read_repository(path.absolute()) for path in repositories]
    known = {model.name for model in opened}
    imported = [load_model(home, name) for name in names if name not in known]
    models = [*imported, *opened] or [load_model(home, None)]
    for model in models:
        if find_kind(model.engine_kind).runs_in_triton_backend:
            check_loadable(open_repository(model.path))
    return models
