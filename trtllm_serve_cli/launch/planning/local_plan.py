"""Plan how to serve imported models on this machine."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtllm_serve_cli.containers.container import ContainerHost, ContainerSetup
from trtllm_serve_cli.containers.container_engine import ENGINES, find_container_host
from trtllm_serve_cli.engine_kinds.registry import find_kind
from trtllm_serve_cli.engine_kinds.selection import detect_machine
from trtllm_serve_cli.engine_kinds.serving import DRAFT_MODEL
from trtllm_serve_cli.errors import BadInput, MissingPart, TllmError
from trtllm_serve_cli.launch.containers.deployment import check_engine_fits, describe_deployable
from trtllm_serve_cli.launch.containers.server_container import IN_IMAGE, plan_container
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.launch.merged_options import choose_options
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan, LaunchRequest
from trtllm_serve_cli.launch.planning.requirements import Requirements
from trtllm_serve_cli.launch.planning.server_plan import plan_launch
from trtllm_serve_cli.launch.planning.warmup_plan import describe_models, plan_warmup
from trtllm_serve_cli.launch.topology.mpi import MpiHost, check_mpirun
from trtllm_serve_cli.launch.triton.stub_paths import check_paths
from trtllm_serve_cli.launch.triton.triton_command import check_backend
from trtllm_serve_cli.launch.triton.triton_install import (
    IN_CONTAINER,
    TritonInstallation,
    count_nvidia_gpus,
    find_libpython,
    find_triton,
    has_nvidia_gpu,
)
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.processes import count_cores
from trtllm_serve_cli.repository.model.instances import EngineInstances, read_instances
from trtllm_serve_cli.repository.model.model_repository import open_repository
from trtllm_serve_cli.repository.model.store import ImportedModel, load_model
from trtllm_serve_cli.repository.model.upstream_repository import read_repository
from trtllm_serve_cli.repository.planning.combined import plan_combination
from trtllm_serve_cli.repository.planning.placed_model import prefixed
from trtllm_serve_cli.repository.validation.engine_limits import read_world_size
from trtllm_serve_cli.repository.validation.validate import check_loadable
from trtllm_serve_cli.sizing.gpus import parse_gpu_ids


def plan_for_this_machine(
    home: Home,
    names: Sequence[str],
    overrides: Mapping[str, Any],
    *,
    repositories: Sequence[Path] = (),
    is_dry_run: bool = False,
) -> LaunchPlan:
    """Plan a server for the imported models `names` and the models in `repositories`.

    By default, serve the only imported model. A name may also refer to a model in `repositories`.
    `overrides` are fields of `LaunchOptions` that take precedence over the models' declarations.

    Raise `UnknownModel` if a model is not imported, or `RepositoryError` if a repository cannot be
    read or its models cannot be loaded. Raise `BadInput` if an option is not valid or does not fit
    the models, or if an engine cannot run on this machine. Raise `MissingPart` if software or a GPU
    is missing. In a dry run, list missing software and GPUs in the plan instead.
    """
    models = _load_models(home, names, repositories)
    options = choose_options(overrides, {model.name: model.launch for model in models})
    requirements = Requirements(is_dry_run)
    plan = (_plan_auto if options.mode == "auto" else _plan)(home, models, options, requirements)
    request = _request(models, repositories, overrides)
    return replace(plan, request=request, missing=requirements.describe())


def _plan_auto(
    home: Home,
    models: Sequence[ImportedModel],
    options: LaunchOptions,
    requirements: Requirements,
) -> LaunchPlan:
    """Plan for the local Triton or, if it cannot serve the models, for a container.

    A container plan contains the error from the local plan as `reason`. If both plans fail,
    raise `MissingPart` with both errors, or the common error if both are the same. In a dry run,
    return the local plan instead if it failed only because software or a GPU is missing.
    """
    local = replace(options, mode="local", image=None, container_engine=None)
    try:
        return _plan(home, models, local, Requirements())
    except (BadInput, MissingPart) as error:
        local_error = error
    try:
        plan = _plan(home, models, replace(options, mode="container"), Requirements())
    except TllmError as error:
        if requirements.is_dry_run and isinstance(local_error, MissingPart):
            return _plan(home, models, local, requirements)
        if error.what == local_error.what:  # Both modes fail with the same error.
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


def _plan(
    home: Home,
    models: Sequence[ImportedModel],
    options: LaunchOptions,
    requirements: Requirements,
) -> LaunchPlan:
    _check_engines_fit(models, options)
    is_container = options.mode == "container"
    setup = _plan_containers(models, options, requirements) if is_container else None
    triton = (
        IN_IMAGE
        if setup is not None
        else requirements.find(lambda: _find_triton(models), IN_CONTAINER)
    )
    if setup is None:
        check_paths(
            home.servers, [model.path for model in models], [each.engine_path for each in models]
        )
    if options.mode == "local":
        requirements.find(lambda: _check_gpus(options.gpus), None)
    libpython_dir = requirements.find(lambda: _find_libpython(triton), "")
    plan = plan_launch(
        models,
        triton,
        options,
        servers=home.servers,
        keys_file=home.keys,
        num_cores=count_cores(),
        token=secrets.token_urlsafe(24),
        combined=plan_combination([open_repository(model.path) for model in models])
        if len(models) > 1
        else (),
        engines=_read_engines(models),
        libpython_dir=libpython_dir,
        has_gpu=bool(setup.gpus) if setup is not None else has_nvidia_gpu(),
        mpi=_detect_mpi_host(options, setup, requirements),
        setup=setup,
    )
    if not options.warmup:
        return plan
    loaded = {
        name: model
        for name, model in zip(plan.text_models, models, strict=True)
        if name in plan.loading
    }
    warmup = plan_warmup(describe_models(loaded), plan.gateway)
    if plan.gateway is None:
        return replace(plan, warmup=warmup)
    gateway = replace(plan.gateway, supervisor_token=secrets.token_urlsafe(24))
    return replace(plan, warmup=warmup, gateway=gateway)


def _find_triton(models: Sequence[ImportedModel]) -> TritonInstallation:
    triton = find_triton(os.environ)
    for model in models:
        check_backend(model, triton)
    return triton


def _check_gpus(ids: str | None) -> None:
    """Raise `MissingPart` if this machine does not have the GPUs in `ids`.

    For GPU UUIDs and MIG device UUIDs, check only whether the machine has an NVIDIA GPU.
    """
    count = count_nvidia_gpus()
    for gpu in parse_gpu_ids(ids):
        if not count or (gpu.isdecimal() and int(gpu) >= count):
            raise MissingPart(
                f"This machine does not have GPU {gpu}.",
                why=f"the machine has {count} NVIDIA GPU{'s' * (count != 1)}"
                if count
                else "no NVIDIA GPU was found",
                next_step="run `nvidia-smi -L` to list the GPUs, or omit --gpus",
            )


def _find_libpython(triton: TritonInstallation) -> str:
    """Return the folder that contains libpython, or "" if Triton does not need the folder.

    Raise `MissingPart` if libpython is missing and `triton` is the embedded Triton.
    """
    folder = find_libpython()
    if folder is None and triton.backend_parts is not None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise MissingPart(
            f"libpython{version}.so.1.0 is not installed.",
            why="Triton's Python backend requires libpython, but neither this Python "
            "installation nor the system provides it",
            next_step=f"run `apt-get install libpython{version}`, then run `tllm doctor` to check "
            "this machine",
        )
    return folder or ""


def _plan_containers(
    models: Sequence[ImportedModel], options: LaunchOptions, requirements: Requirements
) -> ContainerSetup:
    engine = options.container_engine
    assumed = ContainerHost(engine or ENGINES[0], version="")
    host = requirements.find(lambda: find_container_host(engine), assumed)
    deployables = [describe_deployable(model, open_repository(model.path)) for model in models]
    gpus = parse_gpu_ids(options.gpus)
    with_toolkit = replace(host, has_gpu_toolkit=True)
    setup = plan_container(deployables, with_toolkit, image=options.image, gpus=gpus)
    return requirements.find(
        lambda: plan_container(deployables, host, image=options.image, gpus=gpus), setup
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
    chosen = [int(gpu) for gpu in parse_gpu_ids(options.gpus) if gpu.isdecimal()]
    if chosen:
        # Skip GPUs that this machine does not have.
        gpus = tuple(machine.gpus[index] for index in chosen if index < len(machine.gpus))
        machine = replace(machine, gpus=gpus)
    if options.mode == "container":
        # Ignore the installed package versions, because the engine uses the packages in the image.
        machine = replace(machine, versions={})
    for model in models:
        check_engine_fits(model, machine, is_one_machine=options.hostfile is None)


def _read_engines(models: Sequence[ImportedModel]) -> list[EngineInstances]:
    """Return the engines that Triton's C++ backend runs."""
    engines = []
    for model in models:
        if not find_kind(model.engine_kind).runs_in_triton_backend:
            continue
        repository = open_repository(model.path)
        for core in ("tensorrt_llm", DRAFT_MODEL):
            name = core if len(models) == 1 else prefixed(model.name, core)
            world_size = read_world_size(repository, core)
            engine = read_instances(repository, world_size, name=name, model=core)
            engines += [engine] if engine is not None else []
    return engines


def _detect_mpi_host(
    options: LaunchOptions, setup: ContainerSetup | None, requirements: Requirements
) -> MpiHost:
    num_gpus = len(options.gpus.split(",")) if options.gpus else count_nvidia_gpus()
    if setup is not None:
        return MpiHost(setup.host.runs_as is None, num_gpus)
    if options.mode == "mpi":
        requirements.find(lambda: check_mpirun(os.environ), None)
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
