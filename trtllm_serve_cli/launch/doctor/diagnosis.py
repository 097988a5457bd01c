"""Diagnose whether a machine can serve a model and suggest a fix for each problem."""

from __future__ import annotations

import resource
import shlex
from dataclasses import replace

from trtllm_serve_cli.build.tensorrt.versions import load_containers
from trtllm_serve_cli.choices import ContainerEngine
from trtllm_serve_cli.containers.container import ContainerHost, missing_toolkit
from trtllm_serve_cli.containers.container_engine import NOT_INSTALLED, suggest_fix
from trtllm_serve_cli.engine_kinds.machine import Finding, Machine
from trtllm_serve_cli.engine_kinds.registry import EMBEDDED, all_kinds
from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.launch.doctor.driver import MIN_DRIVERS, newest_cuda
from trtllm_serve_cli.launch.doctor.machine_facts import MachineFacts, ModelFacts
from trtllm_serve_cli.launch.doctor.schedulers import Scheduler
from trtllm_serve_cli.launch.triton.stub_paths import WHY, is_usable

_GIB = 1 << 30
_MIB = 1 << 20
# Minimum resources for the demo model's engine and checkpoint, in bytes. Each of Triton's Python
# stubs needs 1 MiB of shared memory, so 64 MiB are enough for 64 stubs.
_MIN_DISK = 1 * _GIB
_MIN_MEMORY = 2 * _GIB
_MIN_SHARED_MEMORY = 64 * _MIB
_EMBEDDED = "pip install 'trtllm-serve-cli[embedded]'"


def diagnose(facts: MachineFacts) -> list[Finding]:
    """Run all checks on `facts` and return their findings."""
    return [
        _triton(facts),
        _stub(facts),
        _libpython(facts),
        _numpy(facts),
        *_engines(facts.machine),
        _gateway(facts),
        *(_port(port, holder) for port, holder in facts.ports.items()),
        *_home(facts),
        _at_least("disk", facts.disk_free, _MIN_DISK, f"for {facts.home}",
                  "free disk space, or set TLLM_HOME to a folder on another disk"),
        _at_least("memory", facts.memory_available, _MIN_MEMORY, "available",
                  "close other programs, or serve a smaller model"),
        _shared_memory(facts),
        _open_files(facts.open_file_limit),
        _gpu(facts),
        _driver(facts),
        *_models(facts),
        *_containers(facts),
        *_hub(facts),
        _scheduler("MPI", facts.mpi,
                   "mpirun not found; required only for engines with several ranks",
                   "apt-get install openmpi-bin"),
        _scheduler("Slurm", facts.slurm,
                   "sinfo not found; required only for tllm deploy slurm --submit",
                   "sinfo"),
        _scheduler("Kubernetes", facts.kubernetes,
                   "kubectl not found; required only for tllm deploy k8s",
                   "kubectl config get-contexts"),
    ]  # fmt: skip


def _triton(facts: MachineFacts) -> Finding:
    if facts.triton is None:
        version = ".".join(map(str, facts.python))
        detail = (
            "tritonserver not found on PATH or in /opt/tritonserver, and nvidia-pytriton not "
            f"installed for Python {version}"
        )
        return Finding("Triton", "problem", detail, _EMBEDDED)
    if facts.triton_version is None:
        detail = f"{facts.triton.binary} does not start: {facts.triton_output}"
        is_embedded = facts.triton.backend_parts is not None
        fix = (
            "pip install --force-reinstall nvidia-pytriton"
            if is_embedded
            else f"reinstall this Triton, or remove it and run {_EMBEDDED}"
        )
        return Finding("Triton", "problem", detail, fix)
    detail = f"{facts.triton_version}, from {facts.triton.origin}"
    return Finding("Triton", "ok", detail)


def _stub(facts: MachineFacts) -> Finding:
    version = ".".join(map(str, facts.python))
    if facts.triton is None:
        return Finding("Python stub", "note", "part of the embedded Triton")
    if not facts.has_stub:
        return Finding(
            "Python stub",
            "problem",
            f"this Triton has no stub for Python {version}",
            "install tllm under Python 3.10, 3.11 or 3.12",
        )
    return Finding("Python stub", "ok", f"for Python {version}")


def _libpython(facts: MachineFacts) -> Finding:
    version = ".".join(map(str, facts.python))
    missing = f"libpython{version}.so.1.0 not found"
    if facts.libpython_dir is None and facts.triton and facts.triton.backend_parts is None:
        detail = f"{missing}; required only for the embedded Triton"
        return Finding("libpython", "note", detail)
    if facts.libpython_dir is None:
        return Finding(
            "libpython",
            "problem",
            f"{missing}; Triton's Python stub is linked against it",
            f"apt-get install libpython{version}   (or a Python built with --enable-shared)",
        )
    return Finding("libpython", "ok", facts.libpython_dir or f"the system's libpython{version}")


def _numpy(facts: MachineFacts) -> Finding:
    if facts.triton is None:
        return Finding("NumPy", "note", "the embedded Triton installs a compatible version")
    if facts.stub_python is None:
        return Finding("NumPy", "problem", "no python3 found for Triton's stub",
                       "install tllm in a virtual environment")  # fmt: skip
    fix = f"{shlex.quote(facts.stub_python)} -m pip install 'numpy<2'"
    if facts.numpy_version is None:
        return Finding("NumPy", "problem", f"not installed for {facts.stub_python}", fix)
    if int(facts.numpy_version.split(".")[0]) >= 2:
        detail = (
            f"{facts.numpy_version} for {facts.stub_python}: Triton's stub corrupts strings with "
            "NumPy 2 or later"
        )
        return Finding("NumPy", "problem", detail, fix)
    return Finding("NumPy", "ok", f"{facts.numpy_version} for {facts.stub_python}")


def _engines(machine: Machine) -> list[Finding]:
    """Report which engine kinds can run.

    If at least one engine kind can run, report problems of the other kinds as notes.
    """
    kinds = sorted(all_kinds(), key=lambda kind: kind.name != EMBEDDED)
    found = [each for kind in kinds if (each := kind.check_machine(machine)) is not None]
    if any(each.verdict == "ok" for each in found):
        return [replace(each, verdict="note") if each.verdict == "problem" else each
                for each in found]  # fmt: skip
    return found


def _gateway(facts: MachineFacts) -> Finding:
    """Report the versions of the packages that the gateway requires, or the missing packages."""
    missing = [name for name, version in facts.gateway_versions.items() if version is None]
    if missing:
        detail = f"not installed: {', '.join(missing)}; `tllm start` requires --no-openai"
        return Finding("gateway", "problem", detail, f"pip install {' '.join(missing)}")
    return Finding(
        "gateway",
        "ok",
        ", ".join(f"{name} {version}" for name, version in facts.gateway_versions.items()),
    )


def _port(port: int, holder: str | None) -> Finding:
    if holder is None:
        return Finding(f"port {port}", "ok", "free")
    detail = f"in use by {holder}"
    return Finding(f"port {port}", "note", detail, "tllm stop, or tllm start with other ports")


def _home(facts: MachineFacts) -> list[Finding]:
    """Report a problem if TLLM_HOME cannot be written, or if Triton cannot use its path."""
    home = facts.home
    if facts.home_error is not None:
        detail = f"{home} cannot be written ({facts.home_error})"
        return [Finding("TLLM_HOME", "problem", detail, "set TLLM_HOME to a writable folder")]
    if is_usable(home):
        return []
    fix = (
        "set TLLM_HOME to a folder whose path contains only ASCII letters, digits and the "
        "characters ./_-"
    )
    return [Finding("TLLM_HOME", "problem", f"{home} cannot be used: {WHY}", fix)]


def _at_least(what: str, found: int, required: int, where: str, fix: str) -> Finding:
    detail = f"{found / _GIB:.1f} GiB {where}"
    if found < required:
        return Finding(
            what, "problem", f"{detail}; at least {required / _GIB:.0f} GiB required", fix
        )
    return Finding(what, "ok", detail)


def _shared_memory(facts: MachineFacts) -> Finding:
    free = facts.shared_memory_free
    if free is None or free < _MIN_SHARED_MEMORY:
        detail = "no /dev/shm" if free is None else f"{free // _MIB} MiB free in /dev/shm"
        fix = "mount -o remount,size=1G /dev/shm   (in a container: --shm-size=1g)"
        return Finding("shared memory", "problem", detail, fix)
    return Finding("shared memory", "ok", f"{free // _MIB} MiB free in /dev/shm")


def _open_files(limit: int) -> Finding:
    """Report a low hard limit as a note, because only thousands of clients would exceed it."""
    required = GatewayConfig(()).num_open_files
    if limit == resource.RLIM_INFINITY:
        return Finding("open files", "ok", "no limit")
    if limit >= required:
        return Finding("open files", "ok", f"at most {limit}")
    detail = f"at most {limit}; the gateway requires {required} for its maximum number of requests"
    fix = (
        "raise the hard limit, for example with LimitNOFILE= (systemd) or --ulimit nofile= (docker)"
    )
    return Finding("open files", "note", detail, fix)


def _gpu(facts: MachineFacts) -> Finding:
    if facts.gpu is None:
        return Finding("GPU", "note", "not found; engine kind openvino does not need a GPU")
    return Finding("GPU", "ok", facts.gpu)


def _driver(facts: MachineFacts) -> Finding:
    if facts.driver is None:
        return Finding("NVIDIA driver", "note", "not found; required only for NVIDIA GPUs")
    try:
        runs = newest_cuda(facts.driver)
    except ValueError:
        return Finding("NVIDIA driver", "note", f"{facts.driver}; supported CUDA versions unknown")
    last = max(MIN_DRIVERS)
    if runs == last:
        return Finding("NVIDIA driver", "ok", f"{facts.driver}, supports CUDA up to {last}")
    fitting = [each.tag for each in load_containers() if each.cuda and each.cuda <= (runs or 0)]
    what = (
        f"supports CUDA up to {runs}"
        if runs
        else f"does not support CUDA {min(MIN_DRIVERS)} or later"
    )
    which = f" (NVIDIA's containers up to {fitting[-1]})" if fitting else ""
    return Finding("NVIDIA driver", "note", f"{facts.driver}, {what}{which}", _newer_driver(last))


def _newer_driver(cuda: int) -> str:
    return f"CUDA {cuda} requires driver {MIN_DRIVERS[cuda]} or later"


def _models(facts: MachineFacts) -> list[Finding]:
    """Report each model that cannot start as a note, because other models may still start."""
    if not facts.models:
        return [Finding("models", "note", "none imported yet", "tllm import -m demo")]
    findings = [finding for model in facts.models for finding in _model(model, facts.driver)]
    return findings or [
        Finding("models", "ok", f"{len(facts.models)} imported; no problems with their engines")
    ]


def _model(model: ModelFacts, driver: str | None) -> list[Finding]:
    what = f"engine of {model.name}"
    if model.misfit is not None:
        detail = " ".join(filter(None, (model.misfit.what, model.misfit.why)))
        return [Finding(what, "note", detail, model.misfit.next_step)]
    if driver is None or model.cuda is None or model.cuda not in MIN_DRIVERS:
        return []
    try:
        runs = newest_cuda(driver)
    except ValueError:
        return []
    if runs is not None and runs >= model.cuda:
        return []
    detail = f"the engine's container has CUDA {model.cuda}, which driver {driver} does not support"
    return [Finding(what, "note", detail, _newer_driver(model.cuda))]


def _scheduler(what: str, found: Scheduler | None, if_missing: str, fix: str) -> Finding:
    """Report a scheduler's problem as a note, because most machines do not need a scheduler."""
    if found is None:
        return Finding(what, "note", if_missing)
    if found.trouble:
        return Finding(what, "note", f"{found.version}: {found.trouble}", fix)
    return Finding(what, "ok", found.version)


def _containers(facts: MachineFacts) -> list[Finding]:
    """Report the installed container engines, or a note if none is installed."""
    installed = {
        engine: found for engine, found in facts.containers.items() if found != NOT_INSTALLED
    }
    if not installed:
        detail = "docker and podman not found; required only for --mode container"
        return [Finding("containers", "note", detail, suggest_fix())]
    return [_container_engine(facts, name, found) for name, found in installed.items()]


def _container_engine(
    facts: MachineFacts, engine: ContainerEngine, found: ContainerHost | str
) -> Finding:
    if isinstance(found, str):
        return Finding(engine, "note", f"cannot run containers: {found}", suggest_fix(found))
    if facts.gpu is not None and not found.has_gpu_toolkit:
        missing = missing_toolkit("a container", engine)
        return Finding(engine, "note", f"{found.version}; {missing.why}", missing.next_step)
    return Finding(engine, "ok", found.version)


def _hub(facts: MachineFacts) -> list[Finding]:
    if facts.hub_error is not None:
        detail = (
            f"{facts.hub} cannot be reached ({facts.hub_error}); the sources gguf:, local: and "
            "pypi: still work"
        )
        reach = Finding("model hub", "note", detail, "set HF_ENDPOINT=https://… to use a mirror")
    else:
        reach = Finding("model hub", "ok", facts.hub)
    if facts.has_hub_token:
        return [reach, Finding("hub token", "ok", "found")]
    fix = "hf auth login   (or HF_TOKEN=…)"
    return [reach, Finding("hub token", "note", "not found; required only for gated models", fix)]
