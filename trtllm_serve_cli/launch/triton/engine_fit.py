"""Whether a TensorRT engine can run here: it is for one version of TensorRT-LLM and one card."""

from __future__ import annotations

from trtllm_serve_cli.build.engine import read_build_record
from trtllm_serve_cli.build.tensorrt.versions import find_containers, parse_version
from trtllm_serve_cli.build.tensorrt_engine import TensorRtBuild, read_tensorrt_build
from trtllm_serve_cli.engine_kinds.selection import Machine
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.store import ImportedModel, command_to_import_again
from trtllm_serve_cli.sizing.gpus import find_card


def check_engine_fits(
    model: ImportedModel, machine: Machine, *, is_one_machine: bool = True
) -> None:
    """Raise `BadInput` where Triton would load the model for minutes and then fail.

    What this machine does not tell (no GPU, no TensorRT-LLM: the server runs elsewhere) is left to
    Triton. Where `is_one_machine` is false, other machines have GPUs for it, too.
    """
    if model.engine_kind != "tensorrt":
        return
    built = read_tensorrt_build(model.engine_path)
    _check_version(model, built, machine.tensorrt_llm)
    if not machine.gpus:
        return
    if is_one_machine and built.world_size > len(machine.gpus):
        raise BadInput(
            f"The engine of {model.name} needs {built.world_size} GPUs, and here are "
            f"{len(machine.gpus)}.",
            why="it was built for one GPU per rank",
            next_step="import it again with a lower --tp or --pp",
        )
    build_record = read_build_record(model.engine_path)
    built_for = build_record.facts.get("gpu") if build_record else None
    card = find_card(machine.gpus[0])
    here = card.name if card else machine.gpus[0]
    if built_for and here != built_for:
        raise BadInput(
            f"The engine of {model.name} was built for another GPU.",
            why=f"it is for {built_for}, and here is {here}; TensorRT's engines run on the "
            "card that they were built on",
            next_step=_rebuild(model),
        )


def _check_version(model: ImportedModel, built: TensorRtBuild, installed: str | None) -> None:
    if installed is None or built.version == "unknown":
        return
    wanted = parse_version(built.version)
    if wanted == parse_version(installed):
        return
    containers = find_containers(wanted)
    elsewhere = f", or serve it in {containers[-1].image}" if containers else ""
    raise BadInput(
        f"The engine of {model.name} was built by another TensorRT-LLM.",
        why=f"it is from {wanted}, and {installed} is installed, which cannot load it",
        next_step=_rebuild(model) + elsewhere,
    )


def _rebuild(model: ImportedModel) -> str:
    if model.source.startswith("engine:"):
        return "build it again here, and import what that leaves"
    return f"{command_to_import_again(model.path, model.name)} --force"
