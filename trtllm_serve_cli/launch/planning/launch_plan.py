"""Which server runs how, as data."""

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
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.containers.container import (
    Container,
    ContainerSetup,
    container_command,
    name_container,
)
from trtllm_serve_cli.launch.launch_options import DRAIN_S, LaunchOptions
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
    stub_environ,
    triton_command,
    triton_flags,
)
from trtllm_serve_cli.launch.triton.triton_install import TritonInstallation
from trtllm_serve_cli.repository.model.instances import EngineInstances
from trtllm_serve_cli.repository.model.store import ImportedModel
from trtllm_serve_cli.repository.planning.combined import PlacedModel, prefixed

_DEFAULT_MPI = MpiHost()
# The supervisor says how long requests in flight may take: it can be asked for more or less.
_NO_EXIT_TIMEOUT_S = "86400"


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What a plan was made of, so that it can be made anew: the same models, as they are then.

    `models` are imported ones, `repositories` folders, `overrides` the options that were wanted.
    """

    models: tuple[str, ...]
    repositories: tuple[Path, ...]
    overrides: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything that `launch` does. `environ` holds only what differs from the environment.

    `directory` is the server's folder: its state, log, restricted-API token and backends.
    `models` are what is served, `text_models` what Triton calls the model to ask for each.
    `backends` are links to make there: name below the folder -> what it points to. Of several
    models, `repository` is made there as well, of `combined`. `host` is the address to listen on.
    `replicas` are the addresses of the ranks after the first, where each serves by itself.
    `loading` are the models that are loaded at the start.
    `exit_timeout_s` is how long requests in flight have when it is stopped.
    `container` is there for a server in one, and `reason` where the mode was chosen for the user.
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
    model_control_mode: ModelControlMode = "none"
    request: LaunchRequest | None = None

    @property
    def runs_mpirun(self) -> bool:
        """Whether `mpirun` starts the Tritons, in a container or not."""
        return "mpirun" in self.argv

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    @property
    def repositories(self) -> tuple[Path, ...]:
        """The repositories of the models that are served."""
        return tuple(dict.fromkeys(each.source.parent for each in self.combined)) or (
            self.repository,
        )

    @property
    def every_model(self) -> tuple[str, ...]:
        """Triton's models, loaded at the start or not."""
        return tuple(each.name for each in self.combined) or self.loading

    def parts_of(self, model: str) -> tuple[str, ...]:
        """The models of Triton's that the imported `model` is made of, loaded or not."""
        if not self.combined:
            return self.loading
        folder = dict(zip(self.models, self.repositories, strict=True))[model]
        return tuple(each.name for each in self.combined if each.source.parent == folder)

    def triton_name(self, owner: str, model: str) -> str:
        """What this server calls the `model` of the imported model `owner`."""
        return prefixed(owner, model) if self.combined else model

    @property
    def ports(self) -> dict[str, int]:
        """What for -> port number."""
        return _ports(self.endpoint)

    @property
    def every_port(self) -> dict[str, int]:
        """`ports`, and those of the replicas."""
        return self.ports | {
            f"{what} of rank {rank}": port
            for rank, replica in enumerate(self.replicas, 1)
            for what, port in _ports(replica).items()
        }

    def describe(self) -> str:
        """The plan in a few lines, its command ready to paste; the token is not shown."""
        changes = " ".join(f"{key}={shlex.quote(value)}" for key, value in self.environ.items())
        lines = [
            *((self.reason,) if self.reason else ()),
            f"Serve {', '.join(self.models)} from {self.repository}",
            *(f"  {line}" for line in self._describe_combined()),
            f"on {self.endpoint.http} (HTTP), {self.endpoint.grpc} (gRPC), "
            f"{self.endpoint.metrics} (metrics):",
            *((f"  {changes} \\",) if changes else ()),
            *(f"  {shlex.quote(word)} \\" for word in self.hide_token(self.argv)),
        ]
        return "\n".join(lines).removesuffix(" \\")

    def _describe_combined(self) -> list[str]:
        width = max((len(each.name) for each in self.combined), default=0)
        return [
            f"{each.name:<{width}}  {each.source}"
            + "".join(f", {place}: {value}" for place, value in each.changes.items())
            for each in self.combined
        ]

    def hide_token(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """`argv` as others may see it."""
        token = self.endpoint.restricted_token
        return tuple(word.replace(token, "****") for word in argv) if token else argv

    def as_dict(self) -> dict[str, Any]:
        """The plan for `--json`, without the token."""
        plan = self._as_data()
        plan["argv"] = list(self.hide_token(self.argv))
        for endpoint in (plan["endpoint"], *plan["replicas"]):
            endpoint.pop("restricted_token")
        return plan

    def to_json(self) -> str:
        """All of it, for the supervisor."""
        return json.dumps(self._as_data(), default=str, indent=2)

    def _as_data(self) -> dict[str, Any]:
        """Return all fields; the request's overrides have the key `given`."""
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
                "directory": Path(plan["directory"]),
                "repository": Path(plan["repository"]),
                "endpoint": _read_endpoint(plan["endpoint"]),
                "replicas": tuple(map(_read_endpoint, plan.get("replicas", ()))),
                "request": _read_request(plan.get("request")),
                "container": Container(**plan["container"]) if plan.get("container") else None,
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
    environ: Mapping[str, str] = os.environ,
) -> LaunchPlan:
    """How `triton` serves `models`; `token` opens the APIs that are restricted.

    One model is served from its own repository, several from the one that `combined` says.
    `libpython_dir` is where Triton's Python stub finds its libpython, "" for the system's own.
    `engines` are those that Triton's C++ backend runs; `mpi` matters where they have ranks, and
    `setup` is there for a container. Raises `BadInput` for ports that clash, for an IPv6 address,
    for options of Triton's that cannot be, and for processes that do not fit the engines;
    `MissingPart` for a model whose backend the embedded Triton does not have.
    """
    if ":" in options.host:
        raise BadInput(
            f"The server cannot listen on {options.host}.",
            why="Triton's front ends do not agree on how an IPv6 address is written",
            next_step="give an IPv4 address, such as --host 127.0.0.1",
        )
    ports = (options.http_port, options.grpc_port, options.metrics_port)
    if len(set(ports)) < len(ports):
        raise BadInput(
            f"The ports {', '.join(map(str, ports))} are not three different ones.",
            next_step="give HTTP, gRPC and metrics a port each",
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
        # All models at once: they wait for disks and for each other's processes.
        "model-load-thread-count": str(max(len(loading), 4)),
        **triton_flags(triton, options, directory, token, has_gpu),
        "exit-timeout-secs": _NO_EXIT_TIMEOUT_S,
        **chosen_flags(triton, options, loading),
        "disable-auto-complete-config": None,
        # Servers on one host must not share memory regions, nor one server with its predecessor.
        "backend-config": f"python,shm-region-prefix-name=tllm-{options.http_port}-",
    }
    if setup is not None:  # It has only the GPUs that it is to use, and an environment of its own.
        options, environ = dataclasses.replace(options, gpus=None), setup.environ
    flags = drop_overridden(flags, find_names(options.triton_args))
    changes = stub_environ(triton, libpython_dir, environ) | ranks_environ(ranks, options)
    changes |= telemetry_environ(options)
    if options.model_control_mode == "poll":
        # Files that Python writes beside a model's would look like a change of it.
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
    container = None
    if setup is not None:
        container = Container(setup.host.engine, setup.image, name_container(directory))
        drains = drain_environ(directory)
        folders = (*((repository,) if combined else ()), *map(Path, drains.values()))
        argv = container_command(container, setup, argv, folders=folders, environ=changes | drains)
        changes = {}
    endpoints = [_endpoint(options, ports, token, tls) for ports in list_ports(ranks, options)]
    return LaunchPlan(
        argv=argv,
        environ=changes,
        directory=directory,
        repository=repository,
        models=tuple(model.name for model in models),
        text_models=tuple(
            prefixed(model.name, model.text_model) if combined else model.text_model
            for model in models
        ),
        loading=loading,
        endpoint=endpoints[0],
        mode=options.mode,
        container=container,
        replicas=tuple(endpoints[1:]),
        combined=combined,
        host=options.host,
        backends=backend_links(triton),
        timeout_s=options.timeout_s,
        model_control_mode=options.model_control_mode,
    )


def _choose_loaded(
    models: Sequence[ImportedModel], options: LaunchOptions
) -> tuple[ImportedModel, ...]:
    """The models to load at the start. Raises `BadInput`."""
    if not options.load_model:
        return tuple(models)
    names = ", ".join(options.load_model)
    if options.model_control_mode != "explicit":
        raise BadInput(
            f"The server loads all of its models, not {names} alone.",
            why=f"its model control mode is {options.model_control_mode}",
            next_step="add --model-control-mode explicit, and later: tllm load NAME",
        )
    known = {model.name: model for model in models}
    for name in options.load_model:
        if name not in known:
            raise BadInput(
                f"The server has no model {name!r} to load.",
                why=f"it serves {', '.join(known)}",
                next_step=f"name it to the server, too: -m {name}",
            )
    return tuple(known[name] for name in dict.fromkeys(options.load_model))


def _list_loaded(
    models: Sequence[ImportedModel], combined: Sequence[PlacedModel]
) -> tuple[str, ...]:
    """What Triton calls the parts of `models` in a combined repository."""
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
