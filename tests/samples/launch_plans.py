"""Launch plans for the fake Triton, on free ports."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import sys
from pathlib import Path

from tests.ports import free_ports
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.containers.container import Container
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.processes import last_lines

FAKE_TRITON = str(Path(__file__).parents[1] / "fakes" / "triton")


def fake_plan(servers: Path, *behaviours: str, timeout_s: float = 60.0) -> LaunchPlan:
    """Return a plan for a fake Triton; `python -m tests.fakes.triton --help` lists behaviours."""
    endpoint = _free_endpoint()
    port = endpoint.http.rpartition(":")[2]
    return LaunchPlan(
        argv=(sys.executable, FAKE_TRITON, port, *behaviours),
        environ={},
        directory=servers / port,
        repository=Path("/models/m"),
        models=("m",),
        text_models=("m",),
        loading=("m", "n"),
        endpoint=endpoint,
        timeout_s=timeout_s,
        exit_timeout_s=1,
    )


def _free_endpoint() -> Endpoint:
    """Return an endpoint on which no other server of the machine listens."""
    http, grpc, metrics = (f"127.0.0.1:{port}" for port in free_ports(3))
    return Endpoint(grpc, http, metrics, restricted_token="secret")


def write_fake_tritonserver(program: Path, *, has_grpc: bool = False) -> None:
    """Write a program that behaves as $BEHAVIOUR selects, in place of `tritonserver`.

    Without `has_grpc`, it does not listen on gRPC, whose import takes longer than the rest of its
    start.
    """
    options = '--grpc-port "$grpc"' if has_grpc else ""
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        "for word; do case $word in\n"
        '  --http-port=*) http="${word#*=}";; --grpc-port=*) grpc="${word#*=}";;\n'
        "esac; done\n"
        f'exec {shlex.join((sys.executable, FAKE_TRITON))} "$http" $BEHAVIOUR {options}\n'
    )
    program.chmod(0o755)


def fake_mpi_plan(servers: Path, *behaviours: str) -> LaunchPlan:
    """Return a plan of two ranks, each a fake Triton, under the real `mpirun`."""
    first = fake_plan(servers)
    second = _free_endpoint()
    commands = [
        ("-n", "1", sys.executable, FAKE_TRITON, each.http.rpartition(":")[2], *behaviours)
        for each in (first.endpoint, second)
    ]
    as_root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    options = (*as_root, "--oversubscribe", "--bind-to", "none")
    return dataclasses.replace(
        first,
        argv=("mpirun", *options, *commands[0], ":", *commands[1]),
        mode="mpi",
        replicas=(second,),
        exit_timeout_s=5,
    )


def fake_container_plan(servers: Path, program: Path, *behaviours: str) -> LaunchPlan:
    """Return a plan in which `program`, in place of a container engine, runs a fake Triton."""
    inside = fake_plan(servers, *behaviours)
    container = Container("podman", "img", f"tllm-{inside.directory.name}")
    return dataclasses.replace(
        inside,
        argv=(str(program), "run", "--rm", f"--name={container.name}", "img", *inside.argv),
        mode="container",
        container=container,
    )


def pids_in(log: Path, what: str = "server") -> list[int]:
    """Return the process ids that `what` logged."""
    lines = [re.fullmatch(rf"{what} (\d+)", line) for line in last_lines(log, 1000)]
    return [int(found[1]) for found in lines if found]
