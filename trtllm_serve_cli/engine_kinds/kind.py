"""Define `EngineKind`, which describes how a kind is selected, built, served and deployed.

Each kind is declared as `KIND` in its own folder and listed in `registry.py`. No other code
compares engine kinds by name. The code of a kind that runs inside Triton is in
`runtime/engines/KIND`.
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
# What starts the processes of an engine on several GPUs: `mpirun` starts one Triton per rank,
# TensorRT-LLM's LLM API launcher (`llm_api`) starts the ranks for one Triton, or the engine starts
# its own processes.
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

    `is_one_machine` is false if other machines also have GPUs for the engine. `import_again` is the
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
    `BuildRequest` that this kind uses but some other kinds do not.

    `describe_built` is called in the last step of a build with the engine's folder, the checkpoint
    and the details in the plan. It returns fields of `Engine`. If a kind serves the checkpoint
    itself, its build has no steps: `describe` returns the engine, and `no_build_reason` is a
    sentence that explains why nothing is built. `describe_source` returns the engine in a folder
    that tllm did not write. Its arguments are the model's name, the engine's folder, the
    tokenizer's folder and the source. `read_details` reads the value of `Engine.details` from the
    engine's folder.
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

    `parameters` are the template parameters that have an effect on this kind, in addition to the
    parameters that apply to all kinds. `plan_values` returns parameter values for an engine, the
    options and the user's parameters. For the parameters in `merged`, the returned value already
    includes the user's value. `check_values` checks the final values against the engine. If
    `empty_is_default` is set, TensorRT-LLM chooses the value of an empty parameter.

    `backends` maps a layout to the Triton backend that it requires. `model_yaml` is set if the
    engine's package defines the arguments in `model.yaml`. It returns these arguments, and the
    entries that remain in `config.pbtxt`.
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
    """The software that a model needs in a container image, and a public image that has it.

    `image` is None if no such image is known. `container` describes NVIDIA's container of the same
    release, including its CUDA version if known.
    """

    needs: str
    image: str | None = None
    container: Container | None = None


@dataclass(frozen=True, slots=True)
class Deployment:
    """The requirements of an engine for the machines that serve it.

    `count_gpus` returns the number of GPUs for one instance. `refuses_mpirun` is the reason why
    `mpirun` cannot start the server, or empty if it can. `reports_waiting` returns whether the
    server's metrics include the number of requests that are waiting in the engine.
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

    `package` is the distribution that runs the engine. If `any_python` is set, another Python on
    the machine may have the package. For `--engine auto`, `offer` receives the requested version of
    TensorRT-LLM and returns this kind as a choice, or None if the kind does not suit the machine.
    `require` returns the Python that runs the engine (empty for Triton's Python), and raises
    `MissingPart` if the machine lacks the package. `check_machine` returns the result for the kind
    in `tllm doctor`. `runtime_folder` has the code that runs inside Triton, if that code is not in
    `runtime/engines`.
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
        """True if the engine is the checkpoint itself, so that nothing is built."""
        return self.building.describe is not None

    @property
    def runs_in_triton_backend(self) -> bool:
        """True if a backend of Triton runs the engine and reads its parameters."""
        return self.serving.core.backend_parameter is not None
