"""Which server a command asks: the one of `-u`, or the one that `tllm start` left running."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from trtllm_serve_cli.errors import BadInput

if TYPE_CHECKING:
    from trtllm_serve_cli.client import Endpoint, Interface

# Every copy of upstream's repository has a text model of this name.
_FOREIGN_MODEL = "tensorrt_llm_bls"


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """Whom to ask and how long to wait."""

    endpoint: Endpoint
    model: str
    interface: Interface
    timeout_s: float | None


def find_target(
    url: str | None, interface: Interface, model: str | None, timeout_s: float | None
) -> Target:
    """The text model to ask; raises `NoServer`, and `BadInput` when there are several."""
    from trtllm_serve_cli.client import Endpoint, parse_address

    if url is not None:
        address = parse_address(url)
        endpoint = Endpoint(http=address) if interface == "http" else Endpoint(grpc=address)
        return Target(endpoint, model or _FOREIGN_MODEL, interface, timeout_s)
    from trtllm_serve_cli import launch
    from trtllm_serve_cli.paths import find_home

    running = launch.find_running(find_home(), model)
    if model is None and len(running.models) != 1:
        raise BadInput(
            "The server has several models.",
            why=f"it serves {', '.join(running.models)}",
            next_step=f"tllm infer -m {running.models[0]} …",
        )
    return Target(running.endpoint, running.text_model(model), interface, timeout_s)


def find_address(url: str | None, model: str | None, port: Literal["grpc", "metrics"]) -> str:
    """The `host:port` of that part of the server; raises `NoServer`, `BadInput`."""
    if url is not None:
        from trtllm_serve_cli.client import parse_address

        return parse_address(url)
    from trtllm_serve_cli import launch
    from trtllm_serve_cli.paths import find_home

    endpoint = launch.find_running(find_home(), model).endpoint
    return endpoint.grpc if port == "grpc" else endpoint.metrics
