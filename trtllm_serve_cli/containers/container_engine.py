"""Find a working container engine, pull images, and remove containers."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from trtllm_serve_cli.choices import ContainerEngine
from trtllm_serve_cli.containers.container import Container, ContainerHost, lower_limit
from trtllm_serve_cli.errors import MissingPart
from trtllm_serve_cli.processes import CommandResult, run_captured, run_streamed

ENGINES: tuple[ContainerEngine, ...] = ("docker", "podman")
NOT_INSTALLED = "not installed"
_INFO = {
    "docker": "{{.ServerVersion}} {{json .SecurityOptions}}",
    "podman": "{{.Version.Version}}",
}
_CDI = (Path("/etc/cdi"), Path("/var/run/cdi"))
_CAP_SYS_RESOURCE = 1 << 24
_TIMEOUT_S = 60.0

# Maps substrings of the container engines' error messages to fixes.
_FIXES = {
    "permission denied": 'run `sudo usermod -aG docker "$USER"`, then log in again',
    "Cannot connect to the Docker daemon": "run `sudo systemctl start docker`",
}
# Causes of failed pulls: a pattern that matches the engine's output, the cause, and the next step.
_PULL_FAILURES = (
    (
        r"unauthorized|denied|authentication required|\b401\b|\b403\b",
        "the registry requires a login or denies access",
        "run `{engine} login {registry}`{account}",
    ),
    (
        r"manifest unknown|not found|\b404\b|does not exist",
        "the registry does not contain this image",
        "pass the name and tag of an existing image with --image",
    ),
    (
        r"no space left on device",
        "the disk that stores container images is full",
        "run `{engine} system df` to show the disk usage, and `{engine} image prune` to free space",
    ),
    (
        r"no such host|connection refused|i/o timeout|dial tcp|network is unreachable|TLS",
        "{registry} cannot be reached",
        "pull the image on another machine, then copy it with `{engine} save` and `{engine} load`",
    ),
    (
        r"short-name",
        "the image name does not contain a registry, which podman requires",
        "add the registry to the image name, for example --image docker.io/{image}",
    ),
)


def find_container_host(
    preferred: ContainerEngine | None, environ: Mapping[str, str] = os.environ
) -> ContainerHost:
    """Return this machine's container host with the `preferred` engine.

    By default, use docker if it works, otherwise podman. Raise `MissingPart` if the preferred
    engine does not work, or if no engine works.
    """
    reasons: dict[str, str] = {}
    for engine in (preferred,) if preferred else ENGINES:
        found = probe_engine(engine, environ)
        if isinstance(found, ContainerHost):
            return found
        reasons[engine] = found
    other = f"install or repair {preferred}, or omit --container-engine" if preferred else None
    fix = suggest_fix(*reasons.values(), other=other)
    raise MissingPart(
        f"{preferred} does not work on this machine."
        if preferred
        else "No container engine works on this machine.",
        why="; ".join(f"{engine}: {reason}" for engine, reason in reasons.items()),
        next_step=f"{fix}, then run `tllm doctor` to check the engine",
    )


def probe_engine(engine: ContainerEngine, environ: Mapping[str, str]) -> ContainerHost | str:
    """Return the engine's settings for running containers, or why the engine does not work."""
    program = shutil.which(engine, path=environ.get("PATH"))
    if program is None:
        return NOT_INSTALLED
    answer = _run((program, "info", f"--format={_INFO[engine]}"))
    if answer.failure:
        return answer.failure
    version, _, security = answer.out.strip().partition(" ")
    # If the engine runs as the current user, containers can run as root. Root in the container then
    # has only the current user's file permissions.
    is_users_own = engine == "podman" or "rootless" in security or os.geteuid() == 0
    return ContainerHost(
        engine=engine,
        version=version,
        runs_as=None if is_users_own else f"{os.geteuid()}:{os.getegid()}",
        hard_limits={} if engine == "docker" or _may_raise_limits() else _hard_limits(),
        has_gpu_toolkit=has_gpu_toolkit(engine, environ),
    )


def suggest_fix(*reasons: str, other: str | None = None) -> str:
    """Return the fix for the first known error in `reasons`.

    If no error is known, return `other` or, by default, the command that installs podman.
    """
    fixes = (fix for message, fix in _FIXES.items() if any(message in each for each in reasons))
    return next(fixes, other or "run `apt-get install podman`")


def has_gpu_toolkit(engine: ContainerEngine, environ: Mapping[str, str]) -> bool:
    """Return whether the engine's containers can access NVIDIA GPUs.

    For docker, look for NVIDIA's runtime hook on PATH. For podman, look for NVIDIA's CDI
    specifications.
    """
    if engine == "docker":
        hook = shutil.which("nvidia-container-runtime-hook", path=environ.get("PATH"))
        return hook is not None
    return any(spec for folder in _CDI for spec in folder.glob("*nvidia*"))


def is_image_here(container: Container) -> bool:
    """Return whether the container's image exists on this machine."""
    return not _run(container.find_image).failure


def pull_image(
    container: Container,
    on_output: Callable[[bytes], None],
    terminal: os.terminal_size | None = None,
) -> None:
    """Pull the container's image and pass the engine's output to `on_output`.

    If `terminal` is set, the container engine formats its output for a terminal of that size. Raise
    `MissingPart` with the cause if the pull fails.
    """
    code, output = run_streamed(container.pull, on_output, terminal=terminal)
    if code != 0:
        raise explain_pull(container, output)


def explain_pull(container: Container, output: str) -> MissingPart:
    """Return the error for a failed pull, with the cause found in the engine's `output`."""
    first, _, rest = container.image.partition("/")
    registry = first if rest and re.search(r"[.:]|^localhost$", first) else "docker.io"
    account = " with the user $oauthtoken and an NGC API key" if registry == "nvcr.io" else ""
    names = {
        "engine": container.engine,
        "registry": registry,
        "account": account,
        "image": container.image,
    }
    why, next_step = "", "run `{engine} pull {image}` to show the full output"
    for pattern, meaning, fix in _PULL_FAILURES:
        if re.search(pattern, output, re.IGNORECASE):
            why, next_step = f"{meaning.format(**names)}: ", fix
            break
    return MissingPart(
        f"The image {container.image} could not be pulled.",
        why=f"{why}{_last_line(output) or f'{container.engine} did not report a reason'}",
        next_step=next_step.format(**names),
    )


def remove_container(container: Container) -> None:
    """Kill and remove the container if it exists."""
    _run(container.remove)


def find_first_process(container: Container) -> int | None:
    """Return the ID of the container's first process in the host's PID namespace.

    Return None if the container is not running.
    """
    pid = _run(container.find_pid).out.strip()
    return int(pid) if pid.isdigit() and pid != "0" else None


def _may_raise_limits() -> bool:
    # Outside Linux, podman runs in a virtual machine with its own limits.
    if sys.platform != "linux":
        return True
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    return found is not None and bool(int(found[1], 16) & _CAP_SYS_RESOURCE)


def _hard_limits() -> dict[str, int]:
    import resource

    numbers = {
        "nofile": resource.RLIMIT_NOFILE,
        "nproc": resource.RLIMIT_NPROC,
        "memlock": resource.RLIMIT_MEMLOCK,
        "stack": resource.RLIMIT_STACK,
    }
    limits = {name: resource.getrlimit(number)[1] for name, number in numbers.items()}
    # Podman lowers its own nproc limit to pid_max, and a container's limit cannot be higher.
    num_pids = int(Path("/proc/sys/kernel/pid_max").read_text())
    return limits | {"nproc": lower_limit(limits["nproc"], num_pids)}


def _run(command: tuple[str, ...]) -> CommandResult:
    return run_captured(command, _TIMEOUT_S) or CommandResult(
        127, err=f"{command[0]} is not installed"
    )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
