"""Select the engine kind that fits a machine and a checkpoint."""

from __future__ import annotations

from trtllm_serve_cli.build.installed import find_python_with, find_version, python_has
from trtllm_serve_cli.choices import Layout
from trtllm_serve_cli.engine_kinds.cpu_memory import find_host
from trtllm_serve_cli.engine_kinds.kind import EngineKind
from trtllm_serve_cli.engine_kinds.machine import EngineChoice, Machine
from trtllm_serve_cli.engine_kinds.registry import AUTO, EMBEDDED, all_kinds, find_kind
from trtllm_serve_cli.sizing.gpus import find_gpus


def detect_machine(
    requested: str = "", engine_python: str = "", *, search_pythons: bool = False
) -> Machine:
    """Return this machine's GPUs, memory and engine packages, without importing the packages.

    Packages of kinds whose `any_python` is true may be installed for another Python. By default,
    search other interpreters only for the package of the `requested` kind. If `search_pythons` is
    set, or if `requested` is "auto" and the machine has GPUs, search for the packages of all these
    kinds. If the user set an interpreter for the engine, `engine_python`, search only this one.
    """
    gpus = tuple(gpu.shown_as for gpu in find_gpus())
    versions, pythons = {}, {}
    for kind in all_kinds():
        if kind.package is None:
            continue
        if version := find_version(kind.package):
            versions[kind.package] = version
        if kind.any_python:
            may_suit = requested == AUTO and bool(gpus)
            python = (
                _find_python(kind.package, engine_python, is_certain=requested == kind.name)
                if search_pythons or may_suit or requested == kind.name
                else None
            )
            if python:
                pythons[kind.package] = python
    return Machine(gpus, versions, pythons, find_host())


def _find_python(package: str, named: str, *, is_certain: bool) -> str | None:
    if not named:
        return find_python_with(package)
    # If the user requested this kind, do not look for the package in the `named` interpreter. The
    # interpreter may exist only on the server's machine.
    return named if is_certain or python_has(named, package) else None


def choose_engine_kind(
    requested: str, machine: Machine, *, trtllm_version: str | None = None
) -> EngineChoice:
    """Return the engine kind for `requested`, which may be "auto".

    If `trtllm_version` is set, assume that this TensorRT-LLM version is installed. Raise `BadInput`
    if `requested` is not an engine kind, or if it is "auto" and `trtllm_version` is not a version.
    Raise `MissingPart` if the kind's `require` function does not find the package.
    """
    if requested != AUTO:
        python = find_kind(requested).require(machine)
        return EngineChoice(requested, f"Engine kind {requested}, as requested.", python)
    for kind in all_kinds():
        if choice := kind.offer(machine, trtllm_version):
            return choice
    embedded = find_kind(EMBEDDED)
    return EngineChoice(EMBEDDED, embedded.summary, embedded.require(machine))


def choose_for_format(checkpoint_format: str, machine: Machine) -> EngineChoice:
    """Return the first kind that reads the format and suits the machine, for `--engine auto`.

    If no kind matches, return the `openvino` kind, or raise `MissingPart` if openvino-genai is not
    installed.
    """
    for kind in all_kinds():
        if checkpoint_format in kind.building.formats and (choice := kind.offer(machine, None)):
            return choice
    return choose_engine_kind(EMBEDDED, machine)


def find_engine_source_kind() -> EngineKind:
    """Return the kind that serves engines from `engine:DIR` sources."""
    return next(kind for kind in all_kinds() if kind.building.describe_source is not None)


def choose_for_layout(layout: Layout, machine: Machine) -> EngineChoice:
    """Return the first kind that supports the layout and suits the machine, for `--engine auto`.

    If no kind matches, return the `openvino` kind, or raise `MissingPart` if openvino-genai is not
    installed.
    """
    for kind in kinds_in_layout(layout):
        if choice := kind.offer(machine, None):
            return choice
    return choose_engine_kind(EMBEDDED, machine)


def find_native_kind(layout: Layout) -> EngineKind | None:
    """Return the kind whose native layout is `layout`, or None."""
    return next((kind for kind in all_kinds() if kind.serving.native_layout == layout), None)


def kinds_in_layout(layout: Layout) -> tuple[EngineKind, ...]:
    """Return the engine kinds that support the layout."""
    return tuple(kind for kind in all_kinds() if layout in kind.serving.layouts)
