"""A server in a container, as one command of docker or podman in the foreground.

Its base is the command that upstream documents for Triton's image with TensorRT-LLM (README.md of
triton-inference-server/tensorrtllm_backend): the host's network, 2 GiB of shared memory, and
limits as they are there. Where ours says more or less, a comment says why.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trtllm_serve_cli.choices import ContainerEngine
from trtllm_serve_cli.errors import BadInput, MissingPart
from trtllm_serve_cli.launch.containers.deployment import Deployable, check_image, outermost
from trtllm_serve_cli.launch.triton.triton_install import TritonInstallation

# NVIDIA's images have it on PATH, from /opt/tritonserver/bin; others may have it anywhere.
IN_IMAGE = TritonInstallation(Path("tritonserver"), "the image")
_UNLIMITED = -1
_ULIMITS = {"memlock": _UNLIMITED, "stack": 64 * 1024 * 1024}
_TOOLKIT = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit"


@dataclass(frozen=True, slots=True)
class ContainerHost:
    """What runs containers on a machine, and for whom.

    `hard_limits` are of whoever starts them, by the names of ulimits, -1 for none; empty where they
    may be raised, or a daemon starts the containers. `runs_as` is the user inside, as uid:gid,
    None where the engine's own choice is the right one. `has_gpu_toolkit` tells whether containers
    can get NVIDIA's GPUs.
    """

    engine: ContainerEngine
    version: str
    runs_as: str | None = None
    hard_limits: Mapping[str, int] = field(default_factory=dict)
    has_gpu_toolkit: bool = False


@dataclass(frozen=True, slots=True)
class Container:
    """The container of one server.

    Its name follows from the server's folder: so what a killed server left is found.
    """

    engine: ContainerEngine
    image: str
    name: str

    @property
    def find_image(self) -> tuple[str, ...]:
        """Succeeds where the image is on this machine."""
        return (self.engine, "image", "inspect", "--format={{.Id}}", self.image)

    @property
    def pull(self) -> tuple[str, ...]:
        return (self.engine, "pull", self.image)

    @property
    def remove(self) -> tuple[str, ...]:
        """Ends the container at once, if it is there."""
        patience = ("--time=0", "--ignore") if self.engine == "podman" else ()
        return (self.engine, "rm", "--force", *patience, self.name)

    @property
    def find_pid(self) -> tuple[str, ...]:
        """Prints which process of the host is the container's first."""
        return (self.engine, "inspect", "--format={{.State.Pid}}", self.name)


@dataclass(frozen=True, slots=True)
class ContainerSetup:
    """What models need of a container: its image, folders at the same paths, GPUs by their ids."""

    host: ContainerHost
    image: str
    folders: tuple[Path, ...]
    gpus: tuple[str, ...] = ()

    @property
    def environ(self) -> dict[str, str]:
        """What the image says in its environment of the Triton in it, as far as its name tells."""
        found = re.search(r"/tritonserver:(\d\d\.\d\d)-", self.image)
        return {"NVIDIA_TRITON_SERVER_VERSION": found[1]} if found else {}


def plan_container(
    models: Sequence[Deployable], host: ContainerHost, *, image: str | None, gpus: tuple[str, ...]
) -> ContainerSetup:
    """What a container needs that serves `models`, on all GPUs unless some are said.

    Raises `BadInput` where no one image serves them, and `MissingPart` where they need GPUs that
    containers cannot have here.
    """
    images = {check_image(model, image): model.name for model in models}
    if len(images) > 1:
        raise BadInput(
            f"{' and '.join(images.values())} cannot be served from one container.",
            why=f"their engines need {' and '.join(images)}",
            next_step="serve each alone, or name an image that has both: --image IMAGE",
        )
    folders = outermost(folder for model in models for folder in model.folders)
    _check_mounts(folders)
    gpu_models = [model.name for model in models if model.num_gpus]
    if gpu_models and not host.has_gpu_toolkit:
        raise missing_toolkit(" and ".join(gpu_models), host.engine)
    return ContainerSetup(
        host, next(iter(images)), folders, (gpus or ("all",)) if gpu_models else ()
    )


def name_container(directory: Path) -> str:
    """One that no other server has, of this home or another."""
    digest = hashlib.sha256(str(directory).encode()).hexdigest()[:8]
    return f"tllm-{directory.name}-{digest}"


def container_command(
    container: Container,
    setup: ContainerSetup,
    command: Sequence[str],
    *,
    folders: Sequence[Path] = (),
    environ: Mapping[str, str],
) -> tuple[str, ...]:
    """Runs `command` in the container, attached, with the setup's folders and `folders`."""
    words: list[str] = [
        # Attached, without a terminal: the supervisor has the output, and passes signals on.
        container.engine, "run", "--rm", f"--name={container.name}",
        # It was fetched before, with its progress shown.
        "--pull=never",
        # What the server says is in its log; the engine's own copy would grow without end.
        "--log-driver=none",
        "--net=host",
        "--shm-size=2g",
    ]  # fmt: skip
    words += [f"--ulimit={name}={value}" for name, value in _ulimits(setup.host).items()]
    words += _gpu_options(container.engine, setup.gpus)
    words += _user_options(setup.host)
    words += [f"--env={name}={value}" for name, value in environ.items()]
    mounts = outermost((*setup.folders, *folders))
    words += [f"--volume={folder}:{folder}:ro" for folder in mounts]
    return (*words, container.image, *command)


def _ulimits(host: ContainerHost) -> dict[str, str]:
    """As documented, as far as whoever starts the container may give them.

    Podman's own limits of files and processes would be refused to whoever may not raise theirs.
    """
    if not host.hard_limits:
        return {name: str(value) for name, value in _ULIMITS.items()}
    hard = host.hard_limits
    limits = {name: lower_limit(value, hard[name]) for name, value in _ULIMITS.items()}
    limits |= {name: value for name, value in hard.items() if name not in limits}
    return {name: f"{value}:{value}" for name, value in limits.items()}


def lower_limit(one: int, other: int) -> int:
    """Of two limits, -1 being none."""
    return max(one, other) if _UNLIMITED in (one, other) else min(one, other)


def _gpu_options(engine: ContainerEngine, gpus: tuple[str, ...]) -> list[str]:
    if not gpus:
        return []
    if engine == "podman":
        return [f"--device=nvidia.com/gpu={gpu}" for gpu in gpus]
    # The quotes are for docker, which would take what follows a comma for another option.
    return ["--gpus=all" if gpus == ("all",) else f'--gpus="device={",".join(gpus)}"']


def _user_options(host: ContainerHost) -> list[str]:
    # SELinux would keep a container of podman's from the folders, and from the GPUs.
    words = ["--security-opt=label=disable"] if host.engine == "podman" else []
    if host.runs_as is not None:
        # This user has no home in the image, nor a name, and libraries that compile want both.
        words += [f"--user={host.runs_as}", "--env=HOME=/tmp", "--env=USER=tllm"]
    return words


def _check_mounts(folders: Sequence[Path]) -> None:
    for folder in folders:
        if ":" in str(folder):
            raise BadInput(
                f"{folder} cannot be mounted into a container.",
                why="docker and podman take what follows a colon for something else",
                next_step="move it to a path without one; TLLM_HOME and ENGINE_DEST_PATH say "
                "where models and engines are",
            )


def missing_toolkit(subject: str, engine: ContainerEngine) -> MissingPart:
    """That containers of the engine get no GPU."""
    if engine == "podman":
        return MissingPart(
            f"{subject} needs a GPU, and podman knows of none here.",
            why="neither /etc/cdi nor /var/run/cdi says how a container gets NVIDIA's GPUs",
            next_step="nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml   (of the NVIDIA "
            f"Container Toolkit: {_TOOLKIT})",
        )
    return MissingPart(
        f"{subject} needs a GPU, and docker can give it none here.",
        why="the NVIDIA Container Toolkit is not installed",
        next_step=f"{_TOOLKIT} says how",
    )
