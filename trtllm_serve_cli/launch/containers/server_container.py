"""Plan the container that serves models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trtllm_serve_cli.containers.container import (
    ContainerHost,
    ContainerSetup,
    check_mounts,
    hash_folder,
    missing_toolkit,
    outermost,
)
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.containers.deployment import Deployable, check_image
from trtllm_serve_cli.launch.triton.triton_install import TritonInstallation

# Look up `tritonserver` on the image's PATH, because custom images may install the binary outside
# /opt/tritonserver/bin.
IN_IMAGE = TritonInstallation(Path("tritonserver"), "the image")


def plan_container(
    models: Sequence[Deployable], host: ContainerHost, *, image: str | None, gpus: tuple[str, ...]
) -> ContainerSetup:
    """Plan a container that serves `models`.

    `image` replaces the public image that fits the engines. If a model needs GPUs, the container
    can access `gpus`, or all GPUs if `gpus` is empty. Otherwise, the container cannot access GPUs.

    Raise `BadInput` if no single image can serve all models or if a folder cannot be mounted. Raise
    `MissingPart` if a model needs GPUs but containers on this machine cannot access GPUs.
    """
    images = {check_image(model, image): model.name for model in models}
    if len(images) > 1:
        raise BadInput(
            f"{' and '.join(images.values())} cannot be served in one container.",
            why=f"the models' engines require different images: {' and '.join(images)}",
            next_step="start a separate server for each model, or pass an image that can serve "
            "all models with --image IMAGE",
        )
    folders = outermost(folder for model in models for folder in model.folders)
    check_mounts(folders)
    gpu_models = [model.name for model in models if model.num_gpus]
    if gpu_models and not host.has_gpu_toolkit:
        raise missing_toolkit(" and ".join(gpu_models), host.engine)
    return ContainerSetup(
        host, next(iter(images)), folders, (gpus or ("all",)) if gpu_models else ()
    )


def name_container(directory: Path) -> str:
    """Return a container name that is unique on this machine, for the server in `directory`.

    The name includes a hash of the path, because servers in different TLLM_HOME folders may use the
    same port.
    """
    return f"tllm-{directory.name}-{hash_folder(directory)}"
