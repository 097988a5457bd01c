"""Collect facts about this machine for `tllm doctor`."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from trtllm_serve_cli.choices import ContainerEngine
from trtllm_serve_cli.containers.container import ContainerHost
from trtllm_serve_cli.containers.container_engine import ENGINES, probe_engine
from trtllm_serve_cli.engine_kinds.machine import Machine
from trtllm_serve_cli.engine_kinds.registry import find_kind
from trtllm_serve_cli.engine_kinds.selection import detect_machine
from trtllm_serve_cli.errors import MissingPart, TllmError
from trtllm_serve_cli.gateway.config import DEFAULT_PORT
from trtllm_serve_cli.launch.containers.deployment import check_engine_fits
from trtllm_serve_cli.launch.doctor.schedulers import (
    Scheduler,
    detect_kubernetes,
    detect_mpi,
    detect_slurm,
)
from trtllm_serve_cli.launch.supervisor.ports import find_holder, try_to_listen
from trtllm_serve_cli.launch.triton.triton_install import (
    TritonInstallation,
    find_libpython,
    find_triton,
)
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.processes import run_captured
from trtllm_serve_cli.repository.model.store import ImportedModel, list_models
from trtllm_serve_cli.sources.disk_space import find_free_bytes
from trtllm_serve_cli.sources.hub_address import find_hub

_VERSION = re.compile(r"server_version\s*\|\s*([\d.]+)")
DEFAULT_PORTS = (8000, 8001, 8002, DEFAULT_PORT)
# The packages that the OpenAI-compatible gateway imports.
_GATEWAY_PACKAGES = ("httptools", "msgspec", "starlette", "uvicorn", "uvloop")
_TRITON_TIMEOUT_S = 30.0
_GPU_TIMEOUT_S = 20.0
_PYTHON_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The facts that determine whether a machine can serve a model. Sizes are in bytes.

    - `python`: major and minor version of the Python that runs tllm.
    - `triton_version`: Triton's version, or None if Triton is not installed or does not start.
    - `triton_output`: if Triton does not start, its last line of output or the system's error.
    - `has_stub`: false if Triton is missing, or if the embedded Triton has no Python stub for
      `python`.
    - `libpython_dir`: result of `find_libpython`.
    - `stub_python`: Python interpreter whose packages Triton's Python stub imports, or None if no
      interpreter was found.
    - `numpy_version`: NumPy version in `stub_python`, or None if NumPy is missing.
    - `machine`: GPUs and versions of the engine packages.
    - `gateway_versions`: maps each package that the OpenAI-compatible gateway requires to its
      version, or to None if the package is missing.
    - `ports`: maps each port to the process that uses it, or to None if the port is free.
    - `home_error`: why files cannot be created in `home`, or None.
    - `disk_free`: free space in the file system of `home`.
    - `shared_memory_free`: free space in /dev/shm, or None if /dev/shm is missing.
    - `open_file_limit`: hard limit for the number of open files.
    - `gpu`: names and driver versions of the NVIDIA GPUs, or None if no GPU was found.
    - `driver`: driver version of the first GPU, or None if no GPU was found.
    - `containers`: maps each container engine to its settings, or to the reason why it does not
      work.
    - `hub_error`: why the hub cannot be reached, or None if the hub responds.
    """

    python: tuple[int, int]
    triton: TritonInstallation | None
    triton_version: str | None
    triton_output: str
    has_stub: bool
    libpython_dir: str | None
    stub_python: str | None
    numpy_version: str | None
    machine: Machine
    gateway_versions: Mapping[str, str | None]
    ports: Mapping[int, str | None]
    home: Path
    home_error: str | None
    disk_free: int
    memory_available: int
    shared_memory_free: int | None
    open_file_limit: int
    gpu: str | None
    driver: str | None
    models: tuple[ModelFacts, ...]
    mpi: Scheduler | None
    slurm: Scheduler | None
    kubernetes: Scheduler | None
    containers: Mapping[ContainerEngine, ContainerHost | str]
    hub: str
    hub_error: str | None
    has_hub_token: bool


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts about an imported model.

    - `misfit`: error that explains why the model cannot be served on this machine, or None.
    - `cuda`: major CUDA version of the container that fits the engine, or None if unknown.
    """

    name: str
    misfit: TllmError | None = None
    cuda: int | None = None


def collect_facts(
    home: Home,
    environ: Mapping[str, str] = os.environ,
    *,
    ports: Sequence[int] = DEFAULT_PORTS,
) -> MachineFacts:
    """Collect the facts about this machine.

    The function usually takes 1 to 2 seconds, because it runs Triton and other programs.
    """
    try:
        triton = find_triton(environ)
    except MissingPart:
        triton = None
    triton_version, output = _read_triton_version(triton.binary) if triton else (None, "")
    python = _stub_python(triton, environ)
    hub = find_hub(environ).url
    gpu = _query_gpus()
    machine = detect_machine(search_pythons=True)
    return MachineFacts(
        python=sys.version_info[:2],
        triton=triton,
        triton_version=triton_version,
        triton_output=output,
        has_stub=bool(triton and (triton.stub is None or triton.stub.exists())),
        libpython_dir=find_libpython(),
        stub_python=python,
        numpy_version=_numpy_version(python) if python else None,
        machine=machine,
        gateway_versions={name: _find_version(name) for name in _GATEWAY_PACKAGES},
        ports={port: _find_port_holder(port) for port in ports},
        home=home.root,
        home_error=_check_writable(home.root),
        disk_free=find_free_bytes(home.root),
        memory_available=psutil.virtual_memory().available,
        shared_memory_free=_shared_memory_free(),
        open_file_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        gpu=gpu,
        driver=gpu.partition("; ")[0].rpartition(", ")[2] if gpu else None,
        models=_check_models(home, machine),
        mpi=detect_mpi(),
        slurm=detect_slurm(),
        kubernetes=detect_kubernetes(),
        containers={engine: probe_engine(engine, environ) for engine in ENGINES},
        hub=hub,
        hub_error=_check_hub(hub),
        has_hub_token=_has_hub_token(),
    )


def _find_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _read_triton_version(binary: Path) -> tuple[str | None, str]:
    """Start Triton without models or ports, read its version from the log, and stop it.

    Return the version and an empty string. If Triton cannot be started, return None and the
    system's error. If Triton does not log its version, return None and the last line of its output.
    Kill Triton if it runs for more than 30 seconds.
    """
    with tempfile.TemporaryDirectory() as empty:
        command = (
            str(binary), f"--model-repository={empty}", "--allow-http=false", "--allow-grpc=false",
            "--allow-metrics=false", "--pinned-memory-pool-byte-size=0",
        )  # fmt: skip
        try:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        except OSError as error:
            return None, str(error)
        lines: list[str] = []
        with process, _killed_after(process, _TRITON_TIMEOUT_S):
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line.strip())
                if found := _VERSION.search(line):
                    process.terminate()
                    return found[1], ""
        return None, lines[-1] if lines else "no output"


@contextlib.contextmanager
def _killed_after(process: subprocess.Popen[str], timeout_s: float) -> Iterator[None]:
    timer = threading.Timer(timeout_s, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _stub_python(triton: TritonInstallation | None, environ: Mapping[str, str]) -> str | None:
    """Return the Python interpreter whose packages Triton's Python stub imports.

    Return None if no interpreter is found.
    """
    if triton is not None and triton.backend_parts is not None:
        return shutil.which("python3", path=str(Path(sys.prefix) / "bin"))
    return shutil.which("python3", path=environ.get("PATH"))


def _numpy_version(python: str) -> str | None:
    code = "from importlib.metadata import version; print(version('numpy'))"
    answer = run_captured((python, "-c", code), _PYTHON_TIMEOUT_S)
    return (answer.out.strip() or None) if answer is not None else None


def _find_port_holder(port: int) -> str | None:
    if try_to_listen("127.0.0.1", port) is None:
        return None
    return find_holder(port) or "another process"


def _shared_memory_free() -> int | None:
    folder = Path("/dev/shm")
    return shutil.disk_usage(folder).free if folder.exists() else None


def _query_gpus() -> str | None:
    """Return the GPUs in the form "NAME, DRIVER VERSION; …", or None if no NVIDIA GPU is found."""
    command = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    answer = run_captured(command, _GPU_TIMEOUT_S)
    if answer is None or answer.code != 0:
        return None
    return "; ".join(answer.out.splitlines()).strip("; ") or None


def _check_writable(folder: Path) -> str | None:
    """Return why files cannot be created in `folder`, or None.

    If `folder` does not exist, check the nearest parent that exists. The check creates and removes
    an empty folder, because permissions do not reveal that a file system is read-only.
    """
    there = next(each for each in (folder, *folder.parents) if os.path.exists(each))  # noqa: PTH110  # False if a parent is unreadable
    try:
        tempfile.TemporaryDirectory(prefix=".tllm-doctor-", dir=there).cleanup()
    except OSError as error:
        # The kernel reports a folder that cannot be created in /proc as missing.
        reason = error.strerror if there.is_dir() else "it is not a folder"
        if isinstance(error, FileNotFoundError):
            reason = "the file system does not allow new folders"
        return f"{there}: {reason}"
    return None


def _check_models(home: Home, machine: Machine) -> tuple[ModelFacts, ...]:
    broken: list[ModelFacts] = []
    models = list_models(
        home, on_broken=lambda name, error: broken.append(ModelFacts(name, misfit=error))
    )
    return (*(_check_model(model, machine) for model in models), *broken)


def _check_model(model: ImportedModel, machine: Machine) -> ModelFacts:
    try:
        check_engine_fits(model, machine)
        container = find_kind(model.engine_kind).deployment.fit_container(model).container
    except TllmError as error:
        return ModelFacts(model.name, misfit=error)
    return ModelFacts(model.name, cuda=container.cuda if container else None)


def _check_hub(url: str) -> str | None:
    try:
        request = urllib.request.Request(url, method="HEAD")
        with contextlib.closing(urllib.request.urlopen(request, timeout=3)):
            return None
    except urllib.error.HTTPError:
        return None  # An error response also shows that the hub is reachable.
    except (OSError, ValueError, HTTPException) as error:
        return str(getattr(error, "reason", error))


def _has_hub_token() -> bool:
    import huggingface_hub

    return huggingface_hub.get_token() is not None
