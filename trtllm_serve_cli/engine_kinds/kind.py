"""Define an engine kind: one frozen description that every stage reads.

A kind is declared in its own folder as `KIND` and listed in `registry.py`. No other code compares
engine kinds by name. The runtime half, which runs inside Triton, is in `runtime/engines/KIND`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from trtllm_serve_cli.build.build_plan import BuildPlan, BuildRequest, Toolchain
from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.build.tensorrt.versions import Container
from trtllm_serve_cli.choices import Layout
from trtllm_serve_cli.engine_kinds.machine import EngineChoice, Finding, Machine
from trtllm_serve_cli.engine_kinds.serving import OUR_CORE_MODEL, CoreModel, ServingOptions

Values = dict[str, str]
# The launcher of an engine's processes on several GPUs: mpirun starts one Triton per rank,
# TensorRT-LLM's LLM API launcher starts ranks for one Triton, or the engine starts them itself.
RankLauncher = Literal["mpirun", "llm_api", "engine"]


class ModelView(Protocol):
    """The part of an imported model that engine kinds read."""

    @property
    def name(self) -> str: ...
    @property
    def engine_path(self) -> Path: ...
    @property
    def source(self) -> str: ...
    @property
    def models(self) -> tuple[str, ...]: ...
    @property
    def declaration(self) -> Mapping[str, Any]: ...


class RepositoryView(Protocol):
    """The part of a model repository that engine kinds read."""

    @property
    def path(self) -> Path: ...
    @property
    def layout(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def manifest(self) -> Mapping[str, Any]: ...
    def value(self, model: str, place: str) -> str: ...


class FitCheck(Protocol):
    """A check that raises `BadInput` if the machine cannot run the model's engine.

    `is_one_machine` is false if other machines also have GPUs for the engine; `import_again` is the
    command that imports the model again.
    """

    def __call__(
        self, model: ModelView, machine: Machine, *, is_one_machine: bool, import_again: str
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Building:
    """The functions and facts that turn a checkpoint into an engine.

    `formats` are the checkpoint formats that the kind reads ("hf", "gguf"). `tools` are the
    distributions whose versions the plan depends on. `request_options` are the fields of
    `BuildRequest` that only some kinds use.

    `describe_built` describes an engine in the last step of its build (directory, checkpoint,
    details of the plan), and returns fields of `Engine`. A kind that serves the checkpoint itself
    has no steps: `describe` returns the engine instead, and `no_build_reason` is a sentence for the
    user. `describe_source` returns the engine in a folder that tllm did not write (name, folder,
    tokenizer's folder, source). `read_details` reads the details of an engine that are specific to
    this kind.
    """

    plan: Callable[[BuildRequest, Toolchain], BuildPlan]
    formats: frozenset[str] = frozenset({"hf"})
    tools: tuple[str, ...] = ()
    needs_weights: bool = True
    request_options: frozenset[str] = frozenset()
    describe: Callable[[BuildRequest, Toolchain], Engine] | None = None
    no_build_reason: str = ""
    describe_built: Callable[[Path, Path, Mapping[str, Any]], dict[str, Any]] | None = None
    describe_source: Callable[[str, Path, Path, str], Engine] | None = None
    read_details: Callable[[Path], Any] | None = None


@dataclass(frozen=True, slots=True)
class Serving:
    """The functions and facts that serve an engine from a model repository.

    `parameters` are the template parameters that have an effect on this kind, in addition to those
    for all kinds. `plan_values` returns their values, as the engine and the options require;
    `merged` are those of the user that it has already merged into others. `check_values` checks the
    final values against the engine. If `empty_is_default`, an empty parameter leaves the choice to
    TensorRT-LLM.

    `backends` names the Triton backend that a layout requires. `model_yaml`, for a kind whose
    package defines the arguments in a `model.yaml`, returns those arguments and the entries that
    stay in `config.pbtxt`.
    """

    layouts: tuple[Layout, ...]
    parameters: frozenset[str]
    plan_values: Callable[[Engine, ServingOptions, Mapping[str, str]], Values]
    core: CoreModel = OUR_CORE_MODEL
    merged: frozenset[str] = frozenset()
    check_values: Callable[[Engine, Mapping[str, str]], None] = lambda engine, values: None
    empty_is_default: bool = False
    backends: Mapping[str, str] | None = None
    model_yaml: Callable[[Mapping[str, str]], tuple[dict[str, Any], Values]] | None = None


@dataclass(frozen=True, slots=True)
class ContainerFit:
    """The requirements of a model on a container image, and a public image if one is known.

    `container` is NVIDIA's container, whose CUDA version is known.
    """

    needs: str
    image: str | None = None
    container: Container | None = None


@dataclass(frozen=True, slots=True)
class Deployment:
    """The requirements of an engine on the machines that serve it.

    `count_gpus` returns the GPUs of one instance. `refuses_mpirun` is the reason why `mpirun`
    cannot start the server, empty if it can. `reports_waiting` returns whether the server's metrics
    include the number of requests that wait in the engine.
    """

    fit_container: Callable[[ModelView], ContainerFit]
    count_gpus: Callable[[ModelView, RepositoryView], int] = lambda model, repository: 0
    ranks: RankLauncher = "engine"
    refuses_mpirun: str = ""
    check_fits: FitCheck | None = None
    reports_waiting: Callable[[ModelView], bool] = lambda model: "tensorrt_llm" in model.models


def _needs_nothing(machine: Machine) -> str:
    return ""


def _offers_nothing(machine: Machine, trtllm_version: str | None) -> EngineChoice | None:
    return None


def _checks_nothing(machine: Machine) -> Finding | None:
    return None


@dataclass(frozen=True, slots=True)
class EngineKind:
    """An engine kind: its name, its package, and how it is selected, built, served and deployed.

    `package` is the distribution that runs the engine; with `any_python`, another Python of the
    machine may have it. `offer` returns the choice of this kind for `--engine auto`, given the
    requested version of TensorRT-LLM, or None if it does not suit the machine. `require` returns
    the Python to run the engine in (empty for Triton's), and raises `MissingPart` if the kind was
    requested and cannot be used. `check_machine` returns its result in `tllm doctor`.
    `runtime_folder` is the kind's runtime half if that is not in `runtime/engines`.
    """

    name: str
    summary: str
    building: Building
    serving: Serving
    deployment: Deployment
    package: str | None = None
    any_python: bool = False
    offer: Callable[[Machine, str | None], EngineChoice | None] = _offers_nothing
    require: Callable[[Machine], str] = _needs_nothing
    check_machine: Callable[[Machine], Finding | None] = _checks_nothing
    runtime_folder: Path | None = None

    @property
    def serves_checkpoints(self) -> bool:
        """True if the checkpoint itself is the engine, so that nothing is built."""
        return self.building.describe is not None

    @property
    def runs_in_triton_backend(self) -> bool:
        """True if a backend of Triton runs the engine and reads its parameters."""
        return self.serving.core.backend_parameter is not None
