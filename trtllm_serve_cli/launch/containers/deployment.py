"""Describe the requirements for serving a model on other machines."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtllm_serve_cli.containers.container import outermost, with_link_targets
from trtllm_serve_cli.engine_kinds.machine import Machine
from trtllm_serve_cli.engine_kinds.registry import find_kind
from trtllm_serve_cli.engine_kinds.serving import DRAFT_MODEL
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.launch.topology.ranks import Ranks, plan_ranks
from trtllm_serve_cli.launch.triton.telemetry_env import trace_settings
from trtllm_serve_cli.launch.triton.triton_command import flag_words, triton_flags
from trtllm_serve_cli.launch.triton.triton_install import TritonInstallation
from trtllm_serve_cli.repository.model.instances import (
    EngineInstances,
    read_gpu_groups,
    read_instances,
)
from trtllm_serve_cli.repository.model.model_repository import OpenRepository
from trtllm_serve_cli.repository.model.runtime_copy import RUNTIME_PACKAGE
from trtllm_serve_cli.repository.model.store import ImportedModel, command_to_import_again
from trtllm_serve_cli.repository.validation.engine_limits import read_world_size

RESTRICTING = ("http-restricted-api", "grpc-restricted-protocol")
# Name of the Triton model that runs the engine. MPI ranks that do not serve requests load only this
# model.
CORE_MODEL = "tensorrt_llm"
_ADAPTERS = "parameters.lora_prefetch_dir"
_PATHS = (
    "parameters.tokenizer_dir", "parameters.gpt_model_path", "parameters.engine_dir",
    _ADAPTERS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Deployable:
    """A model to serve on other machines.

    - `kind`: engine kind.
    - `models`: names of the Triton models that make up the model.
    - `folders`: folders that the other machines must have at the same paths as this machine.
    - `num_gpus`: total number of GPUs that the model needs on all machines.
    - `num_ranks`: number of processes that MPI must start, or 1 if the model does not use MPI.
    - `image`: public container image that fits the engine, or None if no known image fits.
    - `needs`: software that the image must contain.
    - `spawns`: true if TensorRT-LLM spawns the engine processes (orchestrator mode). Orchestrator
      mode is required for several instances of a TensorRT engine, and for a draft engine if
      either engine has several ranks.
    - `reports_waiting`: true if the metrics include the number of requests waiting in the engine.
    - `is_llm_api`: true if `trtllm-llmapi-launch` starts the ranks.
    - `runtime`: folder with a copy of the runtime package that can monitor the server, or None.
    - `needs_tokens`: true if health checks must request a token, because the engine does not write
      heartbeats.
    """

    name: str
    text_model: str
    kind: str
    models: tuple[str, ...]
    repository: Path
    folders: tuple[Path, ...]
    num_gpus: int
    num_ranks: int
    image: str | None
    needs: str = ""
    spawns: bool = False
    reports_waiting: bool = False
    is_llm_api: bool = False
    runtime: Path | None = None
    needs_tokens: bool = False


def describe_deployable(model: ImportedModel, repository: OpenRepository) -> Deployable:
    """Return the requirements for serving the imported `model`, based on its current files.

    Raise `BadInput` if the engine cannot be read, if `lora_prefetch_dir` is not a folder, or if the
    GPUs assigned to the model's instances are not valid or do not fit the engine. Raise
    `RepositoryError` if the number of GPUs cannot be read from the repository.
    """
    kind = find_kind(model.engine_kind)
    deployment, backends = kind.deployment, kind.serving.backends or {}
    num_gpus, ranks = _count(model, repository)
    fit = deployment.fit_container(model)
    return Deployable(
        name=model.name,
        text_model=model.text_model,
        kind=model.engine_kind,
        models=model.models,
        repository=model.path,
        folders=_list_folders(model, repository),
        num_gpus=num_gpus,
        num_ranks=ranks.world_size,
        image=fit.image,
        needs=fit.needs,
        spawns=ranks.spawns,
        reports_waiting=deployment.reports_waiting(model),
        is_llm_api=deployment.ranks == "llm_api" and ranks.world_size > 1,
        runtime=_find_runtime(model),
        needs_tokens=model.layout in backends,
    )


def check_engine_fits(
    model: ImportedModel, machine: Machine, *, is_one_machine: bool = True
) -> None:
    """Raise `BadInput` if the engine cannot run on the machine.

    Without this check, Triton may load an unsuitable engine for minutes before the start fails.
    If `is_one_machine` is false, the engine may also use GPUs on other machines.
    """
    if check_fits := find_kind(model.engine_kind).deployment.check_fits:
        again = command_to_import_again(model.path, model.name)
        check_fits(model, machine, is_one_machine=is_one_machine, import_again=again)


def triton_words(
    model: Deployable,
    triton: TritonInstallation,
    launch: LaunchOptions,
    *,
    token: str,
    unquoted: Mapping[str, str],
) -> dict[str, str]:
    """Return Triton's flags as shell words, keyed by flag name.

    The entry of a repeated flag contains one word for each value. `token` is the token for the
    restricted APIs. `token` and the values in `unquoted` are not quoted, so they can contain shell
    variables. Raise `BadInput` if the OpenTelemetry collector URL is not valid.
    """
    flags = {
        "model-repository": str(model.repository),
        "model-control-mode": "none",
        "model-load-thread-count": str(max(len(model.models), 4)),
        **triton_flags(triton, launch, Path(), "", has_gpu=model.num_gpus > 0),
    }
    words = {name: f"--{name}={shlex.quote(str(value))}" for name, value in flags.items()}
    for name in RESTRICTING:
        words[name] += token
    if trace := trace_settings(launch):
        words["trace-config"] = shlex.join(flag_words({"trace-config": trace}))
    words["disable-auto-complete-config"] = "--disable-auto-complete-config"
    return words | {name: f"--{name}={value}" for name, value in unquoted.items()}


def split_evenly(total: int, nodes: int, what: str) -> int:
    """Return `total` divided by `nodes`. Raise `BadInput` if the result is not a whole number."""
    if total % nodes:
        raise BadInput(
            f"{total} {what} cannot be divided evenly among {nodes} nodes.",
            why=f"each node must have the same number of {what}",
            next_step=f"set --nodes to a divisor of {total}",
        )
    return total // nodes


def check_nodes(model: Deployable, nodes: int) -> None:
    """Raise `BadInput` if `nodes` is greater than 1 but the model can run only on one node."""
    if nodes > 1 and model.num_ranks == 1:
        raise BadInput(
            f"{model.name} cannot be distributed across {nodes} nodes.",
            why=f"the model's {model.kind} engine runs on one node",
            next_step="omit --nodes, or deploy the model several times to run more replicas",
        )


def check_image(model: Deployable, image: str | None, option: str = "--image") -> str:
    """Return `image` or, if it is None, the public image that fits the engine.

    Raise `BadInput` if `image` is None and no public image fits. The error suggests passing a
    custom image with `option`.
    """
    chosen = image or model.image
    if chosen is None:
        raise BadInput(
            f"No public container image can serve {model.name}.",
            why=f"no known image from NVIDIA contains {model.needs}",
            next_step="build an image that contains this software, and pass it with "
            f"{option} IMAGE",
        )
    return chosen


def _find_runtime(model: ImportedModel) -> Path | None:
    """Return the folder with the model's copy of the runtime package, or None.

    If the model was imported with an earlier version of tllm, the copy does not include `watch`, so
    the result is None. Models for Triton's vLLM backend have no copy.
    """
    for name in model.models:
        folder = model.path / name / "1"
        if (folder / RUNTIME_PACKAGE / "watch").is_dir():
            return folder
    return None


def _count(model: ImportedModel, repository: OpenRepository) -> tuple[int, Ranks]:
    """Return the number of GPUs that the model needs, and the ranks that MPI must start."""
    deployment = find_kind(model.engine_kind).deployment
    size = deployment.count_gpus(model, repository)
    if size == 0:
        return 0, Ranks()
    if deployment.ranks == "mpirun":
        engine = read_instances(repository, size) or EngineInstances(CORE_MODEL, size)
        engines = [engine]
        draft_size = read_world_size(repository, DRAFT_MODEL)
        draft = read_instances(repository, draft_size, model=DRAFT_MODEL)
        # If each engine uses a single GPU, do not plan ranks for the draft engine, because one
        # process can run both engines without MPI.
        if draft is not None and max(size, draft_size) > 1:
            engines.append(draft)
        num_gpus = max(each.num_gpus for each in (engine, draft or engine))
        return num_gpus, plan_ranks(engines, LaunchOptions(mode="mpi"))
    engine = EngineInstances(CORE_MODEL, size, read_gpu_groups(repository))
    # If the engine has several instances, MPI does not start the ranks, because each instance
    # starts its own ranks.
    is_launched = deployment.ranks == "llm_api" and engine.count == 1
    return engine.num_gpus, Ranks(size) if is_launched else Ranks()


def _check_adapters(repository: OpenRepository, folder: str | None) -> None:
    """Raise `BadInput` if `folder`, the value of `lora_prefetch_dir`, is set but is not a folder.

    Otherwise, a container engine would refuse the mount or create an empty folder, and the server
    would not have adapters.
    """
    if folder and folder.startswith("/") and not Path(folder).is_dir():
        raise BadInput(
            f"{repository.name} cannot be served with its LoRA adapters.",
            why=f"lora_prefetch_dir is {folder}, which "
            + ("is not a folder" if Path(folder).exists() else "does not exist"),
            next_step=f"run `tllm set {repository.target} lora_prefetch_dir=DIR`, where DIR is the "
            "folder that contains the adapters",
        )


def _list_folders(model: ImportedModel, repository: OpenRepository) -> tuple[Path, ...]:
    """List the folders that contain the model's files.

    The result contains the model repository and the folders with engines, tokenizers and LoRA
    adapters that the models use. It also contains each folder that contains the target of a
    symbolic link in these folders. Skip folders that are nested in other listed folders. Raise
    `BadInput` if `lora_prefetch_dir` is not a folder.
    """
    for model_name in repository.texts:
        _check_adapters(repository, repository.value(model_name, _ADAPTERS))
    parameters = (repository.value(name, place) for name in repository.texts for place in _PATHS)
    named = [Path(value) for value in parameters if value and value.startswith("/")]
    paths = (model.path, model.engine_path, *named)
    return outermost(each for path in paths for each in with_link_targets(path))
