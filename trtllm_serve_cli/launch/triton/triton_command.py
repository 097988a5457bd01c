"""Plan Triton's flags, environment and backend links."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from trtllm_serve_cli.client.endpoint import RESTRICTED_HEADER
from trtllm_serve_cli.engine_kinds.registry import find_kind
from trtllm_serve_cli.errors import MissingPart
from trtllm_serve_cli.launch.launch_options import DRAIN_S, LaunchOptions
from trtllm_serve_cli.launch.triton.telemetry_env import trace_settings
from trtllm_serve_cli.launch.triton.triton_install import TritonInstallation
from trtllm_serve_cli.repository.model.store import ImportedModel

# Maps flags to values. A flag with a tuple is repeated for each item. A flag with None is passed
# without a value.
Flags = dict[str, str | tuple[str, ...] | None]

_RESTRICTED = "shared-memory,model-repository,trace,logging"


def check_backend(model: ImportedModel, triton: TritonInstallation) -> None:
    """Raise `MissingPart` if the model needs a backend that the embedded Triton does not have."""
    backends = find_kind(model.engine_kind).serving.backends or {}
    backend = backends.get(model.layout)
    if backend is not None and triton.backend_parts is not None:
        raise MissingPart(
            f"The Triton installation in {triton.origin} cannot serve {model.name}.",
            why=f"the model needs Triton's {backend} backend, which only container images include",
            next_step="add --mode container, or --container-image IMAGE for a Slurm job",
        )


def triton_command(
    triton: TritonInstallation, flags: Flags, more: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return Triton's command line with `flags`, followed by the arguments `more`."""
    return (str(triton.binary), *flag_words(flags), *more)


def other_rank_flags(engines: tuple[str, ...]) -> Flags:
    """Return the flags for a process that only runs ranks of `engines`.

    The flags disable all ports. Otherwise, the process would open its ports when the backend
    returns control to Triton.
    """
    return {
        "allow-http": "false",
        "allow-grpc": "false",
        "allow-metrics": "false",
        "model-control-mode": "explicit",
        "load-model": engines,
    }


def flag_words(flags: Flags) -> tuple[str, ...]:
    words = []
    for name, value in flags.items():
        match value:
            case None:
                words.append(f"--{name}")
            case str():
                words.append(f"--{name}={value}")
            case tuple():
                words += [f"--{name}={each}" for each in value]
    return tuple(words)


def triton_flags(
    triton: TritonInstallation,
    options: LaunchOptions,
    directory: Path,
    token: str,
    has_gpu: bool,
) -> dict[str, str]:
    flags = {
        "exit-timeout-secs": str(DRAIN_S),
        "http-address": options.host,
        "http-port": str(options.http_port),
        "grpc-address": options.host,
        "grpc-port": str(options.grpc_port),
        "metrics-address": options.host,
        "metrics-port": str(options.metrics_port),
        "http-restricted-api": f"{_RESTRICTED}:{RESTRICTED_HEADER}={token}",
        "grpc-restricted-protocol": f"{_RESTRICTED}:{RESTRICTED_HEADER}={token}",
        "allow-sagemaker": "false",
        "allow-vertex-ai": "false",
        "allow-gpu-metrics": str(has_gpu).lower(),
        "log-verbose": str(options.log_verbose),
    }
    if not has_gpu:
        # Do not allocate pinned memory, which Triton uses only for copies to a GPU.
        flags["pinned-memory-pool-byte-size"] = "0"
    if triton.backend_parts is not None:
        flags["backend-directory"] = str(directory / "backends")
    return flags


def chosen_flags(
    triton: TritonInstallation, options: LaunchOptions, loading: tuple[str, ...]
) -> Flags:
    """Return Triton's flags for the launch options that the user set.

    `loading` contains the models to load at startup in explicit model control mode. Raise
    `BadInput` if the OpenTelemetry collector URL is not valid.
    """
    flags: Flags = {}
    if options.model_control_mode == "explicit":
        flags["load-model"] = loading
    if options.cache_config is not None:
        flags["cache-config"] = options.cache_config
        if triton.backend_parts is not None:
            flags["cache-directory"] = str(triton.binary.parent.parent / "caches")
    if trace := trace_settings(options):
        flags["trace-config"] = trace
    if options.grpc_server_cert is not None:
        flags["grpc-use-ssl"] = "true"
        flags["grpc-server-cert"] = str(options.grpc_server_cert)
        flags["grpc-server-key"] = str(options.grpc_server_key)
    if options.grpc_root_cert is not None:
        flags["grpc-use-ssl-mutual"] = "true"
        flags["grpc-root-cert"] = str(options.grpc_root_cert)
    return flags


def stub_environ(
    triton: TritonInstallation, libpython_dir: str, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment variables for the embedded Triton's Python stub.

    The stub uses the packages of the first `python3` on PATH, so PATH starts with the folder of the
    current Python interpreter. Return an empty dict if `triton` is not the embedded Triton.
    """
    if triton.backend_parts is None:
        return {}
    folder = str(Path(sys.prefix) / "bin")
    changes = {"PATH": f"{folder}:{environ.get('PATH', os.defpath)}"}
    if libpython_dir:
        rest = environ.get("LD_LIBRARY_PATH")
        changes["LD_LIBRARY_PATH"] = f"{libpython_dir}:{rest}" if rest else libpython_dir
    return changes


def backend_links(triton: TritonInstallation) -> dict[str, str]:
    if triton.backend_parts is None or triton.stub is None:
        return {}
    names = ("libtriton_python.so", "triton_python_backend_utils.py")
    links = {f"backends/python/{name}": str(triton.backend_parts / name) for name in names}
    return links | {f"backends/python/{triton.stub.name}": str(triton.stub)}
