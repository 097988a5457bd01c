"""Check that a machine or container can serve a TensorRT engine.

A TensorRT engine requires the TensorRT-LLM version and the GPU model that it was built with.
"""

from __future__ import annotations

from packaging.version import Version

from trtllm_serve_cli.build.engine import read_build_record
from trtllm_serve_cli.build.tensorrt.versions import find_containers, parse_version
from trtllm_serve_cli.engine_kinds.kind import ContainerFit, Deployment, ModelView, RepositoryView
from trtllm_serve_cli.engine_kinds.machine import Machine
from trtllm_serve_cli.engine_kinds.tensorrt.built_engine import TensorRtBuild, read_tensorrt_build
from trtllm_serve_cli.engine_kinds.tensorrt_llm import find_version
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.gpus import find_card

# First TensorRT-LLM version that reports the number of requests waiting in the engine.
_FIRST_WITH_WAITING = Version("0.18.0")


def _count_gpus(model: ModelView, repository: RepositoryView) -> int:
    return read_tensorrt_build(model.engine_path).world_size


def _fit_container(model: ModelView) -> ContainerFit:
    """Return the newest container with the same TensorRT-LLM version as the engine.

    If the engine's version is unknown, or if no container has this version, the `image` and
    `container` of the result are None.
    """
    built = read_tensorrt_build(model.engine_path).version
    version = find_version(built)
    if version is None:
        return ContainerFit("the engine's TensorRT-LLM version (unknown)")
    containers = find_containers(version)
    container = containers[-1] if containers else None
    image = container.image if container else None
    return ContainerFit(f"Triton's TensorRT-LLM {built} backend", image, container)


def _reports_waiting(model: ModelView) -> bool:
    version = find_version(read_tensorrt_build(model.engine_path).version)
    return version is not None and version >= _FIRST_WITH_WAITING


def check_engine_fits(
    model: ModelView, machine: Machine, *, is_one_machine: bool = True, import_again: str
) -> None:
    """Raise `BadInput` if the machine cannot run the engine.

    Without this check, Triton would load the model for several minutes before failing. A check is
    skipped if it depends on an unknown fact. For example, if the server runs on another machine,
    this machine may have neither GPUs nor TensorRT-LLM. If `is_one_machine` is false, the engine
    can also use GPUs on other machines. `import_again` is the command that imports the model again.
    """
    built = read_tensorrt_build(model.engine_path)
    _check_version(model, built, machine.versions.get("tensorrt_llm"), import_again)
    if not machine.gpus:
        return
    if is_one_machine and built.world_size > len(machine.gpus):
        raise BadInput(
            f"The engine for {model.name} needs {built.world_size} GPUs, but this machine has "
            f"{len(machine.gpus)}.",
            why="each engine rank runs on a separate GPU",
            next_step="import the model again with a lower --tp or --pp",
        )
    record = read_build_record(model.engine_path)
    built_for = record.facts.get("gpu") if record else None
    card = find_card(machine.gpus[0])
    here = card.name if card else machine.gpus[0]
    if built_for and here != built_for:
        raise BadInput(
            f"The engine for {model.name} was built for another GPU model.",
            why=(
                f"the engine was built on {built_for} and runs only on this GPU model, but this "
                f"machine has {here}"
            ),
            next_step=_rebuild(model, import_again),
        )


def _check_version(
    model: ModelView, built: TensorRtBuild, installed: str | None, import_again: str
) -> None:
    if installed is None or built.version == "unknown":
        return
    needed = parse_version(built.version)
    if needed == parse_version(installed):
        return
    containers = find_containers(needed)
    elsewhere = f", or serve the engine in {containers[-1].image}" if containers else ""
    raise BadInput(
        f"The engine for {model.name} was built with another TensorRT-LLM version.",
        why=(
            f"the engine can be loaded only with TensorRT-LLM {needed}, but {installed} is "
            "installed"
        ),
        next_step=_rebuild(model, import_again) + elsewhere,
    )


def _rebuild(model: ModelView, import_again: str) -> str:
    if model.source.startswith("engine:"):
        return "build the engine again on this machine and import it"
    return f"run `{import_again} --force`"


DEPLOYMENT = Deployment(
    fit_container=_fit_container,
    count_gpus=_count_gpus,
    ranks="mpirun",
    check_fits=check_engine_fits,
    reports_waiting=_reports_waiting,
)
