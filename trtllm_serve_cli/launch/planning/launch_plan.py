"""The plan of a launch, which `server_plan` creates and the supervisor reads.

Supervisors start faster because this module does not import those that create plans.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtllm_serve_cli.choices import LaunchMode, ModelControlMode
from trtllm_serve_cli.client.endpoint import Endpoint, Tls
from trtllm_serve_cli.containers.container import Container
from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.launch.launch_options import DRAIN_S, HANG_TIMEOUT_S
from trtllm_serve_cli.launch.planning.warmup_plan import WarmupRequest, read_warmup
from trtllm_serve_cli.launch.triton.shared_memory import region_prefix
from trtllm_serve_cli.repository.planning.placed_model import PlacedModel, prefixed

# The endpoint of a Slurm job that has no address yet.
NO_ENDPOINT = Endpoint(grpc="", http="", metrics="")


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


def _ports(endpoint: Endpoint) -> dict[str, int]:
    addresses = {"HTTP": endpoint.http, "gRPC": endpoint.grpc, "metrics": endpoint.metrics}
    return {what: int(address.rpartition(":")[2]) for what, address in addresses.items()}
