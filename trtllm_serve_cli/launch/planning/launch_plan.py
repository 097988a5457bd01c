"""Plan the command, environment, folder and endpoints of a server."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtllm_serve_cli.choices import LaunchMode, ModelControlMode
from trtllm_serve_cli.client.endpoint import Endpoint, Tls
from trtllm_serve_cli.containers.container import (
    Container,
    ContainerSetup,
    check_mounts,
    container_command,
)
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.launch.containers.server_container import name_container
from trtllm_serve_cli.launch.launch_options import DRAIN_S, HANG_TIMEOUT_S, LaunchOptions
from trtllm_serve_cli.launch.planning.adapter_plan import list_adapter_folders
from trtllm_serve_cli.launch.planning.gateway_plan import plan_gateway
from trtllm_serve_cli.launch.planning.warmup_plan import WarmupRequest, read_warmup
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
from trtllm_serve_cli.launch.triton.telemetry_env import telemetry_environ
from trtllm_serve_cli.launch.triton.tls import plan_tls
from trtllm_serve_cli.launch.triton.triton_command import (
    Flags,
    backend_links,
    check_backend,
    chosen_flags,
    region_prefix,
    stub_environ,
    triton_command,
    triton_flags,
)
from trtllm_serve_cli.launch.triton.triton_install import TritonInstallation
from trtllm_serve_cli.repository.model.instances import EngineInstances
from trtllm_serve_cli.repository.model.store import ImportedModel
from trtllm_serve_cli.repository.planning.combined import PlacedModel, prefixed

_DEFAULT_MPI = MpiHost()
# Triton's exit timeout of 24 hours. The supervisor enforces the actual stop timeout, because
# `tllm stop` can change it while Triton is running.
_NO_EXIT_TIMEOUT_S = "86400"


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """The arguments of `plan_for_this_machine`, saved so that the server can be planned again.

    - `models`: names of imported models.
    - `repositories`: paths of model repositories.
    - `overrides`: options from the command line.
    """

    models: tuple[str, ...]
    repositories: tuple[Path, ...]
    overrides: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The complete plan from which `launch` starts a server.

    - `argv`: command that starts the server.
    - `environ`: environment variables to add or change.
    - `directory`: the server's folder, which contains its state, log, restricted-API token and
      backend links.
    - `repository`: model repository. For several models, `launch` creates the repository in
      `directory` from `combined`.
    - `models`: names of the served models.
    - `text_models`: Triton models that receive the requests, one for each served model.
    - `loading`: Triton models to load at startup.
    - `replicas`: endpoints of all processes except the first, if each process is a separate server.
    - `container`: container in which the server runs, or None.
    - `reason`: why `auto` mode selected a container.
    - `host`: address to bind.
    - `combined`: models of the combined repository, or an empty tuple for a single model.
    - `backends`: maps backend link paths, relative to `directory`, to link targets.
    - `timeout_s`: start timeout, in seconds.
    - `exit_timeout_s`: time that a stopping server waits for requests in flight, in seconds.
    - `hang_timeout_s`: time without a completed step after which an engine with requests is
      restarted, in seconds. With 0, hangs are only reported.
    - `request`: arguments for planning the server again, or None.
    - `missing`: in a dry run, a message for each required program or GPU that is missing.
    - `gateway`: configuration of the OpenAI-compatible gateway, or None to run no gateway.
    - `warmup`: requests that warm up the server before it is reported as ready.
    """

    argv: tuple[str, ...]
    environ: dict[str, str]
    directory: Path
    repository: Path
    models: tuple[str, ...]
    text_models: tuple[str, ...]
    loading: tuple[str, ...]
    endpoint: Endpoint
    mode: LaunchMode = "local"
    replicas: tuple[Endpoint, ...] = ()
    container: Container | None = None
    reason: str = ""
    host: str = "127.0.0.1"
    combined: tuple[PlacedModel, ...] = ()
    backends: dict[str, str] = field(default_factory=dict)
    timeout_s: float = 300.0
    exit_timeout_s: int = DRAIN_S
    hang_timeout_s: float = HANG_TIMEOUT_S
    model_control_mode: ModelControlMode = "none"
    request: LaunchRequest | None = None
    missing: tuple[str, ...] = ()
    gateway: GatewayConfig | None = None
    warmup: tuple[WarmupRequest, ...] = ()

    @property
    def runs_mpirun(self) -> bool:
        """True if `mpirun` starts Triton, in a container or on this machine."""
        return "mpirun" in self.argv

    @property
    def region_prefix(self) -> str:
        """The name prefix of the server's shared memory regions."""
        return region_prefix(self.ports["HTTP"], self.endpoint.restricted_token or "")

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    @property
    def gateway_log(self) -> Path:
        return self.directory / "gateway.log"

    @property
    def repositories(self) -> tuple[Path, ...]:
        """The repositories of the served models."""
        return tuple(dict.fromkeys(each.source.parent for each in self.combined)) or (
            self.repository,
        )

    @property
    def every_model(self) -> tuple[str, ...]:
        """All Triton models, whether or not they are loaded at startup."""
        return tuple(each.name for each in self.combined) or self.loading

    def parts_of(self, model: str) -> tuple[str, ...]:
        """Return the Triton models of the imported `model`, whether or not they are loaded."""
        if not self.combined:
            return self.loading
        folder = dict(zip(self.models, self.repositories, strict=True))[model]
        return tuple(each.name for each in self.combined if each.source.parent == folder)

    def triton_name(self, owner: str, model: str) -> str:
        """Return this server's name for the Triton model `model` of the imported model `owner`."""
        return prefixed(owner, model) if self.combined else model

    @property
    def ports(self) -> dict[str, int]:
        """The server's HTTP, gRPC and metrics ports by name.

        The ports of replicas and of the gateway are not included.
        """
        return _ports(self.endpoint)

    @property
    def every_port(self) -> dict[str, int]:
        """The ports of the server, its replicas and its gateway, by name."""
        replicas = {
            f"{what} of rank {rank}": port
            for rank, replica in enumerate(self.replicas, 1)
            for what, port in _ports(replica).items()
        }
        gateway = {} if self.gateway is None else {"OpenAI": self.gateway.port}
        return self.ports | replicas | gateway

    def describe(self) -> str:
        """Return a short summary of the plan and the full command, with the token masked."""
        changes = " ".join(f"{key}={shlex.quote(value)}" for key, value in self.environ.items())
        lines = [
            *((self.reason,) if self.reason else ()),
            *(f"Missing on this machine: {each}" for each in self.missing),
            f"Serve {', '.join(self.models)} from {self.repository}",
            *(f"  {line}" for line in self._describe_combined()),
            f"on {self.endpoint.http} (HTTP), {self.endpoint.grpc} (gRPC), "
            f"{self.endpoint.metrics} (metrics)"
            + (f", {self.gateway.url} (OpenAI):" if self.gateway else ":"),
            *((f"  {changes} \\",) if changes else ()),
            *(f"  {shlex.quote(word)} \\" for word in self.hide_token(self.argv)),
        ]
        lines[-1] = lines[-1].removesuffix(" \\")
        if self.warmup:
            lines += ["Warm-up:", *(f"  {each.describe()}" for each in self.warmup)]
        return "\n".join(lines)

    def _describe_combined(self) -> list[str]:
        width = max((len(each.name) for each in self.combined), default=0)
        return [
            f"{each.name:<{width}}  {each.source}"
            + "".join(f", {place}: {value}" for place, value in each.changes.items())
            for each in self.combined
        ]

    def hide_token(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Return `argv` with the token replaced by asterisks."""
        token = self.endpoint.restricted_token
        return tuple(word.replace(token, "****") for word in argv) if token else argv

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for `--json`, without the tokens."""
        plan = self._as_data()
        plan["argv"] = list(self.hide_token(self.argv))
        served = (plan["gateway"] or {}).get("models", ())
        models = (model["endpoint"] for model in served)
        for endpoint in (plan["endpoint"], *plan["replicas"], *models):
            endpoint.pop("restricted_token")
        if plan["gateway"]:
            plan["gateway"].pop("supervisor_token")
        return plan

    def to_json(self) -> str:
        """Serialize the whole plan for the supervisor, including the tokens."""
        return json.dumps(self._as_data(), default=str, indent=2)

    def _as_data(self) -> dict[str, Any]:
        """Return all fields as a dict. Saved plans store the request's `overrides` as `given`."""
        plan = dataclasses.asdict(self)
        if self.request is not None:
            plan["request"]["given"] = plan["request"].pop("overrides")
        return plan

    @classmethod
    def from_json(cls, text: str) -> LaunchPlan:
        plan = json.loads(text)
        return cls(
            **{
                **plan,
                "argv": tuple(plan["argv"]),
                "models": tuple(plan["models"]),
                "text_models": tuple(plan.get("text_models", plan["models"])),
                "loading": tuple(plan["loading"]),
                "missing": tuple(plan.get("missing", ())),
                "directory": Path(plan["directory"]),
                "repository": Path(plan["repository"]),
                "endpoint": _read_endpoint(plan["endpoint"]),
                "replicas": tuple(map(_read_endpoint, plan.get("replicas", ()))),
                "request": _read_request(plan.get("request")),
                "warmup": read_warmup(plan.get("warmup", ())),
                "container": Container(**plan["container"]) if plan.get("container") else None,
                "gateway": GatewayConfig.from_dict(plan["gateway"])
                if plan.get("gateway")
                else None,
                "combined": tuple(
                    PlacedModel(**{**each, "source": Path(each["source"])})
                    for each in plan.get("combined", ())
                ),
            }
        )


def _read_endpoint(facts: Mapping[str, Any]) -> Endpoint:
    tls = facts.get("tls")
    return Endpoint(**{**facts, "tls": Tls(**tls) if tls else None})


def _read_request(facts: Mapping[str, Any] | None) -> LaunchRequest | None:
    if facts is None:
        return None
    repositories = tuple(map(Path, facts["repositories"]))
    return LaunchRequest(tuple(facts["models"]), repositories, facts["given"])


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
    if ":" in options.host:
        raise BadInput(
            f"The server cannot listen on the IPv6 address {options.host}.",
            why="Triton's HTTP and gRPC servers expect different notations for IPv6 addresses",
            next_step="pass an IPv4 address, for example --host 127.0.0.1",
        )
    ports = (options.http_port, options.grpc_port, options.metrics_port)
    every_port = (*ports, *((options.openai_port,) if options.openai else ()))
    if len(set(every_port)) < len(every_port):
        raise BadInput(
            f"The ports {', '.join(map(str, every_port))} are not distinct.",
            why="HTTP, gRPC, metrics and the OpenAI-compatible API each need a separate port",
            next_step="set --http-port, --grpc-port, --metrics-port and --openai-port to different "
            "ports",
        )
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
        argv = container_command(container, setup, argv, folders=folders, environ=changes | drains)
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


def _ports(endpoint: Endpoint) -> dict[str, int]:
    addresses = {"HTTP": endpoint.http, "gRPC": endpoint.grpc, "metrics": endpoint.metrics}
    return {what: int(address.rpartition(":")[2]) for what, address in addresses.items()}
