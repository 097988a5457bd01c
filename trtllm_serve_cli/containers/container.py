"""Build the docker or podman command that runs another command in a container.

The command is based on the `docker run` command for Triton's TensorRT-LLM image in the README.md of
triton-inference-server/tensorrtllm_backend. Like that command, it uses the host's network, 2 GiB of
shared memory and the same ulimits. Comments in this module explain the differences.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trtllm_serve_cli.choices import ContainerEngine
from trtllm_serve_cli.errors import BadInput, MissingPart

_UNLIMITED = -1
_ULIMITS = {"memlock": _UNLIMITED, "stack": 64 * 1024 * 1024}
_TOOLKIT = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit"


@dataclass(frozen=True, slots=True)
class ContainerHost:
    """A machine's container engine and the settings for running containers.

    - `runs_as`: user in the container, in the form uid:gid, or None for the engine's default user.
    - `hard_limits`: maps ulimit names to the current user's hard limits. -1 means unlimited. The
      mapping is empty if the user may raise the limits or if a daemon starts the containers.
    - `has_gpu_toolkit`: true if containers can access NVIDIA GPUs.
    """

    engine: ContainerEngine
    version: str
    runs_as: str | None = None
    hard_limits: Mapping[str, int] = field(default_factory=dict)
    has_gpu_toolkit: bool = False


@dataclass(frozen=True, slots=True)
class Container:
    """The container in which a command runs.

    `name` is derived from a folder that the command uses, so that later tllm commands can find the
    container.
    """

    engine: ContainerEngine
    image: str
    name: str

    @property
    def find_image(self) -> tuple[str, ...]:
        """A command that succeeds if the image exists on this machine."""
        return (self.engine, "image", "inspect", "--format={{.Id}}", self.image)

    @property
    def pull(self) -> tuple[str, ...]:
        return (self.engine, "pull", self.image)

    @property
    def remove(self) -> tuple[str, ...]:
        """A command that kills and removes the container if it exists."""
        patience = ("--time=0", "--ignore") if self.engine == "podman" else ()
        return (self.engine, "rm", "--force", *patience, self.name)

    @property
    def find_pid(self) -> tuple[str, ...]:
        """A command that prints the first process's ID in the host's PID namespace."""
        return (self.engine, "inspect", "--format={{.State.Pid}}", self.name)


@dataclass(frozen=True, slots=True)
class ContainerSetup:
    """The image, folders and GPUs for a container on `host`.

    The container mounts `folders` at the same paths as on the host. `gpus` contains GPU IDs, or
    only "all" to use all GPUs. It is empty for a container without GPUs.
    """

    host: ContainerHost
    image: str
    folders: tuple[Path, ...]
    gpus: tuple[str, ...] = ()

    @property
    def environ(self) -> dict[str, str]:
        """The environment variable with Triton's version.

        The dict is empty if the image name does not contain the version.
        """
        found = re.search(r"/tritonserver:(\d\d\.\d\d)-", self.image)
        return {"NVIDIA_TRITON_SERVER_VERSION": found[1]} if found else {}


def hash_folder(folder: Path) -> str:
    """Return a short hash of the folder's path, for container names that are unique per machine."""
    return hashlib.sha256(str(folder).encode()).hexdigest()[:8]


def container_command(
    container: Container,
    setup: ContainerSetup,
    command: Sequence[str],
    *,
    folders: Sequence[Path] = (),
    writable: Sequence[Path] = (),
    environ: Mapping[str, str],
    passed_on: Sequence[str] = (),
    options: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the docker or podman command that runs `command` in an attached container.

    - `folders`: folders to mount read-only, in addition to the folders of `setup`.
    - `writable`: folders to mount read-write.
    - `environ`: environment variables to set.
    - `passed_on`: names of environment variables to inherit from the docker or podman client. Their
      values do not appear in the command.
    - `options`: additional options for `docker run` or `podman run`.
    """
    words: list[str] = [
        # Stay attached, so that the docker or podman client writes the command's output to the log
        # and forwards signals to the command.
        container.engine, "run", "--rm", f"--name={container.name}",
        # Do not pull the image here, because tllm has already pulled it with a progress display.
        "--pull=never",
        # Disable the container engine's log, which would duplicate tllm's log.
        "--log-driver=none",
        "--net=host",
        "--shm-size=2g",
        *options,
    ]  # fmt: skip
    words += [f"--ulimit={name}={value}" for name, value in _ulimits(setup.host).items()]
    words += _gpu_options(container.engine, setup.gpus)
    words += _user_options(setup.host)
    words += [f"--env={name}={value}" for name, value in environ.items()]
    words += [f"--env={name}" for name in passed_on]
    # Do not also mount writable folders read-only, because docker rejects duplicate mounts.
    read_only = [each for each in (*setup.folders, *folders) if each not in writable]
    words += [f"--volume={folder}:{folder}:ro" for folder in outermost(read_only)]
    words += [f"--volume={folder}:{folder}" for folder in outermost(writable)]
    return (*words, container.image, *command)


def outermost(folders: Iterable[Path]) -> tuple[Path, ...]:
    """Return `folders` without duplicates and without folders that are nested in other folders."""
    found = dict.fromkeys(folders)
    return tuple(path for path in found if not any(other in path.parents for other in found))


def with_link_targets(path: Path) -> list[Path]:
    """Return `path` and each folder that contains the target of a symbolic link in `path`.

    For example, checkpoint files in the Hugging Face cache are links to files in another folder.
    """
    links = [each for each in path.rglob("*") if each.is_symlink()] if path.is_dir() else []
    return [path, *(link.resolve().parent for link in links)]


def _ulimits(host: ContainerHost) -> dict[str, str]:
    """Return the ulimits from tensorrtllm_backend's README, capped at the host's hard limits.

    If the host has hard limits, also return the hard limits for open files and processes, because
    rootless podman fails if its default limits exceed the user's hard limits.
    """
    if not host.hard_limits:
        return {name: str(value) for name, value in _ULIMITS.items()}
    hard = host.hard_limits
    limits = {name: lower_limit(value, hard[name]) for name, value in _ULIMITS.items()}
    limits |= {name: value for name, value in hard.items() if name not in limits}
    return {name: f"{value}:{value}" for name, value in limits.items()}


def lower_limit(one: int, other: int) -> int:
    """Return the lower of two limits, where -1 means unlimited."""
    return max(one, other) if _UNLIMITED in (one, other) else min(one, other)


def _gpu_options(engine: ContainerEngine, gpus: tuple[str, ...]) -> list[str]:
    if not gpus:
        return []
    if engine == "podman":
        return [f"--device=nvidia.com/gpu={gpu}" for gpu in gpus]
    # Without the quotes, docker would parse the text after a comma as another option.
    return ["--gpus=all" if gpus == ("all",) else f'--gpus="device={",".join(gpus)}"']


def _user_options(host: ContainerHost) -> list[str]:
    # Disable SELinux labels, because SELinux would deny podman containers access to folders and
    # GPUs.
    words = ["--security-opt=label=disable"] if host.engine == "podman" else []
    if host.runs_as is not None:
        # Set a home directory and a user name for libraries that compile code. The image does
        # not define either for this user.
        words += [f"--user={host.runs_as}", "--env=HOME=/tmp", "--env=USER=tllm"]
    return words


def check_mounts(folders: Iterable[Path], separators: str = ":") -> None:
    """Raise `BadInput` if a folder cannot be mounted because its path contains a separator.

    `separators` are the characters that separate the parts of a mount option. The default is the
    separator of docker and podman.
    """
    for folder in folders:
        if found := next((each for each in separators if each in str(folder)), ""):
            character = "a colon" if found == ":" else "a comma"
            raise BadInput(
                f"{folder} cannot be mounted into a container.",
                why=f"the path contains {character}, which is a separator in mount options",
                next_step=f"move the folder to a path without {character}, then set TLLM_HOME "
                "(models), ENGINE_DEST_PATH (engines), or --lora and --runtime-lora-dir (LoRA "
                "adapters) to the new path",
            )


def missing_toolkit(subject: str, engine: ContainerEngine) -> MissingPart:
    """Return the error for a container engine whose containers cannot access GPUs."""
    if engine == "podman":
        return MissingPart(
            f"podman cannot give {subject} access to GPUs.",
            why="/etc/cdi and /var/run/cdi contain no CDI specification for NVIDIA GPUs",
            next_step=f"install the NVIDIA Container Toolkit ({_TOOLKIT}), then run `sudo "
            "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`",
        )
    return MissingPart(
        f"docker cannot give {subject} access to GPUs.",
        why="the NVIDIA Container Toolkit is not installed",
        next_step=f"install the NVIDIA Container Toolkit ({_TOOLKIT})",
    )
