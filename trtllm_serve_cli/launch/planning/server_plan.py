"""Plan the command, environment, folder and endpoints of a server."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from trtllm_serve_cli.client.endpoint import Endpoint, Tls
from trtllm_serve_cli.containers.container import (
    Container,
    ContainerSetup,
    check_mounts,
    container_command,
)
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.containers.server_container import name_container
from trtllm_serve_cli.launch.launch_options import LaunchOptions, check_distinct
from trtllm_serve_cli.launch.planning.adapter_plan import list_adapter_folders
from trtllm_serve_cli.launch.planning.gateway_plan import plan_gateway
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.topology.mpi import (
    MpiHost,
    Ports,
    check_models,
    list_ports,
    mpirun_command,
    pool_flags,
    rank_flags,
    ranks_environ,
)
from trtllm_serve_cli.launch.topology.ranks import plan_ranks
from trtllm_serve_cli.launch.triton.drain import drain_environ
from trtllm_serve_cli.launch.triton.passthrough_args import drop_overridden, find_names
from trtllm_serve_cli.launch.triton.shared_memory import region_prefix
from trtllm_serve_cli.launch.triton.telemetry_env import telemetry_environ
from trtllm_serve_cli.launch.triton.tls import plan_tls
from trtllm_serve_cli.launch.triton.triton_command import (
    Flags,
    backend_links,
    check_backend,
    chosen_flags,
    stub_environ,
    triton_command,
    triton_flags,
)
from trtllm_serve_cli.launch.triton.triton_install import TritonInstallation
from trtllm_serve_cli.processes import SINGLE_THREADED
from trtllm_serve_cli.repository.model.instances import EngineInstances
from trtllm_serve_cli.repository.model.store import ImportedModel
from trtllm_serve_cli.repository.planning.placed_model import PlacedModel, prefixed

_DEFAULT_MPI = MpiHost()
# Triton's exit timeout of 24 hours. The supervisor enforces the actual stop timeout, because
# `tllm stop` can change it while Triton is running.
_NO_EXIT_TIMEOUT_S = "86400"


def plan_launch(
    models: Sequence[ImportedModel],
    triton: TritonInstallation,
    options: LaunchOptions,
    *,
    servers: Path,
    token: str,
    combined: tuple[PlacedModel, ...] = (),
    engines: Sequence[EngineInstances] = (),
    libpython_dir: str = "",
    has_gpu: bool = False,
    mpi: MpiHost = _DEFAULT_MPI,
    setup: ContainerSetup | None = None,
    keys_file: Path | None = None,
    num_cores: int = 1,
    environ: Mapping[str, str] = os.environ,
) -> LaunchPlan:
    """Plan a server that runs `triton` to serve `models`.

    - `servers`: parent of the server's folder.
    - `token`: token for the restricted APIs.
    - `combined`: models of the combined repository, or an empty tuple for a single model.
    - `engines`: engines that Triton's C++ backend runs.
    - `libpython_dir`: folder from which Triton's Python stub loads libpython, or "" to use the
      system's library.
    - `has_gpu`: true if Triton can use a GPU.
    - `mpi`: machine or container on which `mpirun` runs.
    - `setup`: container in which Triton runs, or None.
    - `keys_file`: file with the API keys for the OpenAI-compatible API.
    - `num_cores`: number of CPU cores, which determines the default number of gateway processes.
    - `environ`: environment variables of this process.

    Raise `BadInput` if an option is not valid, conflicts with another option or does not fit the
    models. Raise `MissingPart` if the embedded Triton does not have a model's backend.
    """
    options = dataclasses.replace(options, host=_resolve_host(options.host))
    ports = (options.http_port, options.grpc_port, options.metrics_port)
    check_distinct((*ports, options.openai_port if options.openai else None))
    for model in models:
        check_backend(model, triton)
    ranks = plan_ranks(engines, options)
    directory = servers / str(options.http_port)
    repository = directory / "models" if combined else models[0].path
    at_start = _choose_loaded(models, options)
    loading = _list_loaded(at_start, combined) or models[0].models
    tls = plan_tls(options.grpc_server_cert, options.grpc_server_key, options.grpc_root_cert)
    flags: Flags = {
        "model-repository": str(repository),
        "model-control-mode": options.model_control_mode,
        # Load all models in parallel, because loading a model mostly means waiting for disk reads
        # and for a process to start.
        "model-load-thread-count": str(max(len(loading), 4)),
        **triton_flags(triton, options, directory, token, has_gpu),
        "exit-timeout-secs": _NO_EXIT_TIMEOUT_S,
        **chosen_flags(triton, options, loading),
        "disable-auto-complete-config": None,
        # tllm uses the same prefix to remove the shared memory regions of a killed server.
        "backend-config": "python,shm-region-prefix-name="
        f"{region_prefix(options.http_port, token)}",
    }
    if setup is not None:
        # Clear the GPU selection, because the container exposes only the selected GPUs. Use the
        # image's environment variables, because Triton runs in the container.
        options, environ = dataclasses.replace(options, gpus=None), setup.environ
    flags = drop_overridden(flags, find_names(options.triton_args))
    changes = stub_environ(triton, libpython_dir, environ) | ranks_environ(ranks, options)
    changes |= telemetry_environ(options)
    if options.model_control_mode == "poll":
        # Disable bytecode files, because Triton reloads a model when a file in its folder changes.
        changes["PYTHONDONTWRITEBYTECODE"] = "1"
    argv = triton_command(triton, flags, options.triton_args)
    if ranks.mode != "alone":
        check_models(models)
        flags |= pool_flags(ranks, mpi.num_gpus, environ)
        commands = [
            triton_command(triton, rank_flags(flags, rank, ranks, options), options.triton_args)
            for rank in range(ranks.world_size)
        ]
        argv = mpirun_command(commands, mpi, ranks, options, changes)
    endpoints = [_endpoint(options, ports, token, tls) for ports in list_ports(ranks, options)]
    text_models = {
        prefixed(model.name, model.text_model) if combined else model.text_model: model
        for model in models
    }
    gateway = plan_gateway(options, text_models, endpoints, directory, keys_file, num_cores)
    container = None
    if setup is not None:
        check_mounts(adapters := list_adapter_folders(gateway))
        container = Container(setup.host.engine, setup.image, name_container(directory))
        drains = drain_environ(directory)
        folders = (*((repository,) if combined else ()), *map(Path, drains.values()), *adapters)
        inside = SINGLE_THREADED | changes | drains
        argv = container_command(container, setup, argv, folders=folders, environ=inside)
        changes = {}
    return LaunchPlan(
        argv=argv,
        environ=changes,
        directory=directory,
        repository=repository,
        models=tuple(model.name for model in models),
        text_models=tuple(text_models),
        loading=loading,
        endpoint=endpoints[0],
        mode=options.mode,
        container=container,
        replicas=tuple(endpoints[1:]),
        combined=combined,
        host=options.host,
        backends=backend_links(triton),
        timeout_s=options.timeout_s,
        hang_timeout_s=options.hang_timeout_s,
        model_control_mode=options.model_control_mode,
        gateway=gateway,
    )


def _resolve_host(host: str) -> str:
    """Return the IPv4 address of `host`. Raise `BadInput` unless it is an address or localhost."""
    if host == "localhost":
        return "127.0.0.1"
    try:
        return str(ipaddress.IPv4Address(host))
    except ValueError as error:
        raise BadInput(
            f"The server cannot listen on {host!r}.",
            why="Triton's HTTP server does not resolve host names, and its HTTP and gRPC servers "
            "expect different notations for IPv6 addresses",
            next_step="pass an IPv4 address, for example --host 127.0.0.1",
        ) from error


def _choose_loaded(
    models: Sequence[ImportedModel], options: LaunchOptions
) -> tuple[ImportedModel, ...]:
    """Return the models to load at startup.

    Raise `BadInput` if --load-model is set but the model control mode is not explicit, or if
    --load-model names an unknown model.
    """
    if not options.load_model:
        return tuple(models)
    names = ", ".join(options.load_model)
    if options.model_control_mode != "explicit":
        raise BadInput(
            f"The server cannot load only {names}.",
            why="--load-model requires explicit model control mode, but the mode is "
            f"{options.model_control_mode!r}",
            next_step="add --model-control-mode explicit, or omit --load-model to load all models",
        )
    known = {model.name: model for model in models}
    for name in options.load_model:
        if name not in known:
            raise BadInput(
                f"The server does not have a model named {name!r}.",
                why=f"the server's models are {', '.join(known)}",
                next_step=f"add the model to the server with -m {name}",
            )
    return tuple(known[name] for name in dict.fromkeys(options.load_model))


def _list_loaded(
    models: Sequence[ImportedModel], combined: Sequence[PlacedModel]
) -> tuple[str, ...]:
    """Return the names that the Triton models of `models` have in the combined repository.

    Return an empty tuple if the server does not use a combined repository.
    """
    folders = {model.path for model in models}
    return tuple(each.name for each in combined if each.source.parent in folders)


def _endpoint(options: LaunchOptions, ports: Ports, token: str, tls: Tls | None) -> Endpoint:
    host = "127.0.0.1" if options.host == "0.0.0.0" else options.host
    return Endpoint(
        grpc=f"{host}:{ports.grpc}",
        http=f"{host}:{ports.http}",
        metrics=f"{host}:{ports.metrics}",
        restricted_token=token,
        tls=tls,
    )
