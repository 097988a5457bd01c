"""Find the server for a command, from the address in `-u` or among the running servers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtllm_serve_cli.cli.shared.completion import addresses
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.option_fields import Option

if TYPE_CHECKING:
    from trtllm_serve_cli.client.ask import Responder
    from trtllm_serve_cli.client.endpoint import Endpoint, Tls
    from trtllm_serve_cli.client.generate import GenerateRequest, Interface, TritonInterface
    from trtllm_serve_cli.client.model_info import ModelInfo
    from trtllm_serve_cli.launch.servers.running import RunningServer
    from trtllm_serve_cli.paths import Home

ServerOption = Annotated[
    str | None,
    typer.Option(
        "-u",
        "--url",
        metavar="HOST:PORT",
        help="Server address, as shown by `tllm status`. Default: the only running server.",
        autocompletion=addresses("http"),
    ),
]
TlsCaOption = Annotated[
    Path | None,
    Option(
        "CA certificate file (PEM) for verifying servers at grpcs://HOST:PORT. Default: the "
        "public CAs.",
        flags=("--tls-ca",),
        metavar="FILE",
        panel="Target",
    ),
]
# The default text model at a server address. Model repositories based on inflight_batcher_llm in
# triton-inference-server/tensorrtllm_backend contain this model; the gpt and llmapi layouts do not.
_UPSTREAM_TEXT_MODEL = "tensorrt_llm_bls"
CORE_MODEL = "tensorrt_llm"
_TITLES = {"grpc": "gRPC", "http": "HTTP"}


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """The model that a command sends requests to.

    - `endpoint`: a server or another `Responder`, such as an engine in a child process.
    - `model`: the Triton model name.
    - `interface`: the protocol.
    - `timeout_s`: the request timeout, in seconds, or None for no timeout.
    - `info`: the model's configuration, or None if the configuration has not been fetched.
    """

    endpoint: Endpoint | Responder
    model: str
    interface: Interface
    timeout_s: float | None
    info: ModelInfo | None = None

    def complete(self, request: GenerateRequest) -> GenerateRequest:
        """Return the request with the sampling parameters that `complete_request` adds.

        For an OpenAI-compatible server, return the request unchanged, because the server applies
        its own defaults.
        """
        if self.interface == "openai":
            return request
        from trtllm_serve_cli.cli.shared.sampling import complete_request

        return complete_request(request, self.info.inputs if self.info else frozenset())


def choose_tls(url: str | None, ca: Path | None) -> Tls | None:
    """Return the TLS settings for the address `url`, or None if it does not use TLS.

    Raise `BadInput` if a CA is specified, but the address does not use TLS.
    """
    from trtllm_serve_cli.client.endpoint import Tls

    if url is not None and url.startswith("grpcs://"):
        return Tls(None if ca is None else str(ca.absolute()))
    if ca is not None:
        raise BadInput(
            "--tls-ca requires a server address that starts with grpcs://.",
            why="only connections to grpcs://HOST:PORT use a CA certificate from --tls-ca",
            next_step="pass `-u grpcs://HOST:PORT`, or omit --tls-ca",
        )
    return None


def find_target(
    url: str | None,
    interface: TritonInterface,
    model: str | None,
    timeout_s: float | None,
    tls_ca: Path | None = None,
) -> Target:
    """Find the server for a command's requests and return its text model.

    If `url` is set, `model` is the name of a Triton model on that server. If `model` is None, use
    `tensorrt_llm_bls`. The interface is detected from the port's response, and `interface` applies
    only if the port does not respond. Addresses with TLS always use gRPC.

    If `url` is None, `model` is the name of an imported model, or of a Triton model on a running
    server. `tls_ca` is the CA certificate for a server with TLS.

    Raise `NoServer` if no server or several servers match, or if the server has no address yet.
    Raise `BadInput` if `url` or `tls_ca` cannot be used, or if the server has several models and
    `model` is None.
    """
    from trtllm_serve_cli.client.address import parse_address
    from trtllm_serve_cli.client.endpoint import Endpoint

    tls = choose_tls(url, tls_ca)
    if url is not None and tls is not None:
        endpoint = Endpoint(grpc=parse_address(url), tls=tls)
        return Target(endpoint, model or _UPSTREAM_TEXT_MODEL, "grpc", timeout_s)
    if url is not None:
        from trtllm_serve_cli.client.transport.port_probe import probe_interface

        address = parse_address(url)
        interface = probe_interface(address) or interface
        endpoint = Endpoint(http=address) if interface == "http" else Endpoint(grpc=address)
        return Target(endpoint, model or _UPSTREAM_TEXT_MODEL, interface, timeout_s)
    from trtllm_serve_cli.launch.servers.running import find_by_triton_model, find_running
    from trtllm_serve_cli.paths import find_home

    home = find_home()
    if model is not None and (server := find_by_triton_model(home, model)) is not None:
        return Target(server.endpoint, model, interface, timeout_s)
    running = find_running(home, model)
    name = running.text_model(_choose(running, model))
    return Target(running.endpoint, name, interface, timeout_s)


@dataclasses.dataclass(frozen=True, slots=True)
class BenchTarget:
    """A model to benchmark.

    - `address`: the server's gRPC or HTTP address.
    - `model`: the Triton model name.
    - `metrics`: the server's metrics address, or None if unknown.
    - `imported_model`: the imported model that the command selects. None if the command selects a
      Triton model by name, or if tllm did not start the server.
    - `tls`: the TLS settings, or None if the address does not use TLS.
    """

    address: str
    model: str
    metrics: str | None = None
    imported_model: str | None = None
    tls: Tls | None = None


def find_bench_target(
    url: str | None,
    interface: TritonInterface,
    model: str | None,
    text_model: str | None = None,
    tls_ca: Path | None = None,
) -> BenchTarget:
    """Return the Triton model to benchmark and its server.

    `model` is the name of a Triton model or of an imported model. For an imported model,
    `text_model` selects the Triton model: the name of a model in NVIDIA's templates, `own` for the
    imported model's text model, or None for `tensorrt_llm`. If tllm did not start the server,
    `text_model` applies only if `model` is None, and `own` selects `tensorrt_llm_bls`.

    `tls_ca` is the CA certificate for a server with TLS. Raise `NoServer` if no server or several
    servers match, or if the server has no address yet. Raise `BadInput` in these cases:
    - `url` or `tls_ca` cannot be used.
    - tllm did not start the server, and the port does not serve `interface`, or `interface` is HTTP
      but `url` selects TLS.
    - The model computes embeddings.
    - The server has several models, and `model` is None.
    """
    from trtllm_serve_cli.launch.servers.running import (
        find_by_triton_model,
        find_running,
        find_servers,
    )
    from trtllm_serve_cli.paths import find_home

    home = find_home()
    address, tls = parse_url(url), choose_tls(url, tls_ca)
    if model is not None and (server := find_by_triton_model(home, model, address)) is not None:
        _refuse_embedding_model(home, model)
        endpoint = server.endpoint
        return _bench_target(endpoint, interface, model)
    if address is None:
        running = find_running(home, model)
    else:
        ours = [each for each in find_servers(home, model, address) if each.is_running]
        if not ours:
            if tls is None:
                _check_interface(address, interface)
            elif interface == "http":
                raise _no_https(address)
            core_or_text = {None: CORE_MODEL, "own": _UPSTREAM_TEXT_MODEL}.get(
                text_model, text_model
            )
            return BenchTarget(address, model or core_or_text or CORE_MODEL, tls=tls)
        running = ours[0]
    owner = _choose(running, model)
    _refuse_embedding_model(home, owner)
    endpoint = running.endpoint
    if text_model == "own":
        name = running.text_model(owner)
    else:
        name = running.plan.triton_name(owner, text_model or CORE_MODEL)
    return _bench_target(endpoint, interface, name, owner)


def _bench_target(
    endpoint: Endpoint, interface: TritonInterface, name: str, owner: str | None = None
) -> BenchTarget:
    """Return the Triton model `name` on a server that tllm started."""
    if interface == "http":
        return BenchTarget(endpoint.http, name, endpoint.metrics, owner)
    return BenchTarget(endpoint.grpc, name, endpoint.metrics, owner, endpoint.tls)


def _no_https(address: str) -> BadInput:
    return BadInput(
        f"The benchmark cannot send HTTP requests to grpcs://{address}.",
        why="Triton supports TLS for gRPC, but not for HTTP",
        next_step="omit -i http",
    )


def _check_interface(address: str, interface: TritonInterface) -> None:
    """Raise `BadInput` if the port at `address` serves another interface or requires TLS."""
    from trtllm_serve_cli.client.transport.port_probe import probe_interface

    served = probe_interface(address)
    if served is not None and served != interface:
        raise BadInput(
            f"{address} serves {_TITLES[served]}, not {_TITLES[interface]}.",
            why=f"the benchmark sends its requests over {_TITLES[interface]}",
            next_step=f"pass -i {served}, or pass the server's {_TITLES[interface]} port with -u",
        )


def _refuse_embedding_model(home: Home, name: str) -> None:
    from trtllm_serve_cli.repository.model.store import find_model

    imported = find_model(home, name)
    if imported is not None and imported.layout == "embedding":
        raise BadInput(
            f"{name} cannot be benchmarked.",
            why="the model computes embeddings, but benchmarks measure generated tokens",
            next_step="specify a model that generates text with -m NAME",
        )


def find_metrics(urls: Sequence[str], model: str | None) -> tuple[str, ...]:
    """Return the metrics addresses in `urls` as `host:port`.

    A URL can also be the HTTP or gRPC address of a server that tllm started. If `urls` is empty,
    return the metrics address of the running server, or one address per rank if each rank is a
    separate server. Raise `BadInput` if a URL is not an address. Raise `NoServer` if no server or
    several servers match, or if the server has no address yet.
    """
    if urls:
        from trtllm_serve_cli.client.address import parse_address

        return tuple(dict.fromkeys(_metrics_at(parse_address(url)) for url in urls))
    from trtllm_serve_cli.launch.servers.running import find_running
    from trtllm_serve_cli.paths import find_home

    running = find_running(find_home(), model)
    return (running.endpoint.metrics, *(each.metrics for each in running.plan.replicas))


def _metrics_at(address: str) -> str:
    """Return the metrics address of the server that listens on `address`.

    Return `address` if tllm did not start the server.
    """
    from trtllm_serve_cli.launch.servers.running import find_servers
    from trtllm_serve_cli.paths import find_home

    local = parse_url(address)
    for server in find_servers(find_home(), None, local):
        for each in (server.plan.endpoint, *server.plan.replicas):
            if server.is_running and local != each.metrics and local in (each.http, each.grpc):
                return each.metrics
    return address


def find_gateway_metrics(address: str) -> str | None:
    """Return the URL of the gateway's metrics page for the server with the metrics `address`.

    Return None if tllm did not start the server, or if the server is not running or has no gateway.
    """
    from trtllm_serve_cli.launch.servers.running import find_servers
    from trtllm_serve_cli.paths import find_home

    for server in find_servers(find_home(), None, parse_url(address)):
        if server.is_running and server.plan.gateway is not None:
            return f"{server.plan.gateway.url}/metrics"
    return None


def _choose(running: RunningServer, model: str | None) -> str:
    if model is not None:
        return model
    if len(running.models) > 1:
        raise BadInput(
            "The server has several models, but no model was specified.",
            why=f"the server's models are {', '.join(running.models)}",
            next_step=f"select a model with -m, for example -m {running.models[0]}",
        )
    return running.models[0]


def parse_url(url: str | None) -> str | None:
    """Return `url` as `host:port`, or None if `url` is None.

    Replace `localhost` with 127.0.0.1, because callers compare the result with the stored addresses
    of local servers, which use 127.0.0.1.
    """
    if url is None:
        return None
    from trtllm_serve_cli.client.address import parse_address

    return re.sub("^localhost:", "127.0.0.1:", parse_address(url))
