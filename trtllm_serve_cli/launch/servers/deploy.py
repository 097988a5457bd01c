"""Plan Slurm jobs and Kubernetes manifests for imported models, and submit Slurm jobs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.containers.container import outermost
from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.launch.clusters.kubernetes import KubernetesOptions, Manifest, plan_kubernetes
from trtllm_serve_cli.launch.clusters.pod_gateway import ENDPOINT, KEYS_FILE, PodGateway
from trtllm_serve_cli.launch.clusters.pod_script import GATEWAY_FOLDER
from trtllm_serve_cli.launch.clusters.slurm import (
    SlurmOptions,
    SlurmPlan,
    plan_slurm,
    render_script,
)
from trtllm_serve_cli.launch.clusters.slurm_job import SlurmJob, make_job_folder, submit_job
from trtllm_serve_cli.launch.containers.deployment import (
    Deployable,
    check_image,
    describe_deployable,
)
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.launch.planning.adapter_plan import list_adapter_folders
from trtllm_serve_cli.launch.planning.gateway_plan import plan_gateway
from trtllm_serve_cli.launch.triton.triton_command import check_backend, stub_environ
from trtllm_serve_cli.launch.triton.triton_install import IN_CONTAINER, find_libpython, find_triton
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository.model.model_repository import open_repository
from trtllm_serve_cli.repository.model.store import ImportedModel, load_model


def load_deployable(home: Home, name: str | None) -> Deployable:
    """Return the requirements for serving the imported model `name` or the only imported model.

    Raise the errors that `load_model`, `open_repository` and `describe_deployable` raise.
    """
    model = load_model(home, name)
    return describe_deployable(model, open_repository(model.path))


def _add_adapters(model: Deployable, gateway: GatewayConfig | None) -> Deployable:
    """Return `model` with the folders of the adapters that the gateway serves."""
    folders = outermost((*model.folders, *list_adapter_folders(gateway)))
    return replace(model, folders=folders)


def plan_slurm_here(
    home: Home,
    name: str | None,
    options: SlurmOptions,
    launch: LaunchOptions,
    *,
    directory: Path | None = None,
) -> SlurmPlan:
    """Plan a Slurm job that serves an imported model in a container or with the local Triton.

    Raise the errors that `load_deployable`, `plan_gateway` and `plan_slurm` raise. Raise
    `MissingPart` if this machine's Triton is required but is missing or cannot serve the model.
    """
    imported = load_model(home, name)
    gateway = _plan_job_gateway(home, imported, launch)
    model = _add_adapters(load_deployable(home, name), gateway)
    environ: dict[str, str] = {}
    triton = IN_CONTAINER
    if options.container_image is None:
        triton = find_triton(os.environ)
        check_backend(imported, triton)
        environ = stub_environ(triton, find_libpython() or "", os.environ)
    return plan_slurm(
        model, triton, options, launch, directory=directory, environ=environ, gateway=gateway
    )


def _plan_job_gateway(
    home: Home, model: ImportedModel, launch: LaunchOptions
) -> GatewayConfig | None:
    """Plan the gateway for a job, or return None if the options disable the gateway.

    The batch script sets the gateway's ports and state folder.
    """
    return plan_gateway(launch, {model.text_model: model}, [Endpoint()], Path(), home.keys)


def submit_slurm(
    home: Home, name: str | None, options: SlurmOptions, launch: LaunchOptions
) -> tuple[SlurmJob, Path]:
    """Submit the job that `plan_slurm_here` plans. Return the job and its folder.

    Raise the errors that `plan_slurm_here` and `submit_job` raise.
    """
    model = load_deployable(home, name)
    # Plan the job before creating its folder, so that an error does not leave an empty folder.
    plan_slurm_here(home, name, options, launch)
    directory = make_job_folder(home.servers, model.name)
    plan = plan_slurm_here(home, name, options, launch, directory=directory)
    gateway = _plan_job_gateway(home, load_model(home, name), launch)
    return submit_job(render_script(plan), model, directory, gateway=gateway), directory


def plan_kubernetes_here(
    home: Home,
    name: str | None,
    options: KubernetesOptions,
    launch: LaunchOptions,
    *,
    openai_image: str | None = None,
    keys_secret: str | None = None,
) -> list[Manifest]:
    """Plan the Kubernetes manifests for serving an imported model.

    `openai_image` is the image for the OpenAI-compatible gateway, or None to run no gateway.
    `keys_secret` is the name of the Secret that contains the gateway's API keys. Raise the errors
    that `load_deployable`, `plan_gateway` and `plan_kubernetes` raise.
    """
    gateway = None
    if openai_image is not None:
        imported = load_model(home, name)
        keys_file = Path(KEYS_FILE) if keys_secret else None
        served = {imported.text_model: imported}
        config = plan_gateway(launch, served, [ENDPOINT], Path(GATEWAY_FOLDER), keys_file)
        gateway = PodGateway(config, openai_image, keys_secret) if config else None
    model = _add_adapters(load_deployable(home, name), gateway.config if gateway else None)
    return plan_kubernetes(model, options, launch, home=home.root, gateway=gateway)


def find_image(home: Home, name: str | None) -> str:
    """Return the public image that fits the model's engine.

    Raise `BadInput` if no image fits, or the errors that `load_deployable` raises.
    """
    return check_image(load_deployable(home, name), None, "--container-image")
