"""Run build steps in a container."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtllm_serve_cli.choices import ContainerEngine
from trtllm_serve_cli.containers.container import (
    Container,
    ContainerHost,
    ContainerSetup,
    check_mounts,
    container_command,
    hash_folder,
    missing_toolkit,
    outermost,
    with_link_targets,
)
from trtllm_serve_cli.containers.container_engine import (
    find_container_host,
    is_image_here,
    pull_image,
)
from trtllm_serve_cli.errors import MissingPart
from trtllm_serve_cli.sources.hub_address import find_hub

# Environment variables that the container inherits from tllm's process. They configure Hugging Face
# downloads, proxies, and the TensorRT-LLM log level (tensorrt_llm/logger.py). The docker or podman
# command line contains only the variable names, because values such as HF_TOKEN would be visible in
# the process list.
_PASSED_ON = (
    "HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "TLLM_LOG_LEVEL",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ContainerOptions:
    """The options for building in a container.

    `examples` is a folder on this machine with TensorRT-LLM's example scripts. It is required if
    the image does not include these scripts. If `gpus` is empty, the container can use all GPUs.
    """

    engine: ContainerEngine | None = None
    image: str | None = None
    examples: Path | None = None
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerTools:
    """The container engine and the image for a build.

    - `gpus`: the IDs of the GPUs that the container can use, or only "all" for all GPUs.
    - `examples`: the container path of TensorRT-LLM's example scripts.
    - `folders`: the folders to mount in addition to the steps' inputs.
    - `cache`: the Hugging Face cache folder.
    - `variables`: the names of the environment variables that the container inherits.
    - `problem`: the error to raise when the build starts, or `None` if this machine can run the
      container. A build with a problem can still be planned.
    """

    host: ContainerHost
    image: str
    gpus: tuple[str, ...]
    examples: Path
    folders: tuple[Path, ...]
    cache: Path
    variables: tuple[str, ...] = ()
    problem: MissingPart | None = None


@dataclass(frozen=True, slots=True)
class BuildContainer:
    """The container that runs the build steps.

    The `cache`, `variables` and `problem` fields have the same meaning as in `ContainerTools`.
    """

    setup: ContainerSetup
    cache: Path
    variables: tuple[str, ...] = ()
    problem: MissingPart | None = None

    def named_for(self, work: Path) -> Container:
        """Return the container for a step that writes to `work`."""
        name = f"tllm-build-{hash_folder(work)}"
        return Container(self.setup.host.engine, self.setup.image, name)

    def command_for(self, command: Sequence[str], work: Path) -> tuple[str, ...]:
        """Return the command that runs `command` in a container.

        The container has write access to `work` and to the Hugging Face cache folder.
        """
        return container_command(
            self.named_for(work),
            self.setup,
            command,
            writable=(work, self.cache),
            environ={"PYTHONUNBUFFERED": "1", "HF_HUB_CACHE": str(self.cache)},
            passed_on=self.variables,
            # Some programs write to their working directory. Use /tmp, because the container's user
            # cannot write to the image's default working directory.
            options=("--workdir=/tmp",),
        )


def find_container_tools(options: ContainerOptions, image: str, examples: Path) -> ContainerTools:
    """Find a container engine. Return it with the image and the folders for the build.

    If this machine cannot run the container, store the error in `problem` instead of raising it,
    because the build can still be planned. If no container engine works, return the requested
    engine, or docker by default.
    """
    problem = None
    try:
        host = find_container_host(options.engine)
        if not host.has_gpu_toolkit:
            problem = missing_toolkit("the build", host.engine)
    except MissingPart as error:
        host, problem = _assume_host(options.engine or "docker"), error
    return ContainerTools(
        host=host,
        image=image,
        gpus=options.gpus or ("all",),
        examples=examples,
        folders=(options.examples,) if options.examples else (),
        cache=find_hub().cache,
        variables=tuple(name for name in _PASSED_ON if name in os.environ),
        problem=problem,
    )


def plan_container(
    tools: ContainerTools, inputs: Iterable[Path], engine_dir: Path
) -> BuildContainer:
    """Plan the container for the steps that read `inputs` and build the engine in `engine_dir`.

    Raise `BadInput` if a folder cannot be mounted because its path contains a colon.
    """
    paths = (*inputs, *tools.folders)
    folders = outermost(each for path in paths for each in with_link_targets(path))
    check_mounts((*folders, tools.cache, engine_dir))
    setup = ContainerSetup(tools.host, tools.image, folders, tools.gpus)
    return BuildContainer(setup, tools.cache, tools.variables, tools.problem)


def prepare_container(
    container: BuildContainer, notify: Callable[[str], None], on_line: Callable[[str], None]
) -> None:
    """Pull the image if it is missing, and create the Hugging Face cache folder.

    `notify` receives a message before the pull. `on_line` receives the lines of the pull output.
    Raise `MissingPart` if this machine cannot run the container, or if the image cannot be pulled.
    """
    if container.problem is not None:
        raise container.problem
    # Create the folder now, because the container engine would otherwise create it as root.
    container.cache.mkdir(parents=True, exist_ok=True)
    image = container.named_for(Path())
    if not is_image_here(image):
        notify(f"Fetching {image.image} …")
        pull_image(image, lambda output: _show_lines(output, on_line))


def _assume_host(engine: ContainerEngine) -> ContainerHost:
    is_daemons = engine == "docker" and os.geteuid() != 0
    runs_as = f"{os.geteuid()}:{os.getegid()}" if is_daemons else None
    return ContainerHost(engine, version="", runs_as=runs_as, has_gpu_toolkit=True)


def _show_lines(output: bytes, on_line: Callable[[str], None]) -> None:
    for line in output.decode(errors="replace").splitlines():
        if line.strip():
            on_line(line)
