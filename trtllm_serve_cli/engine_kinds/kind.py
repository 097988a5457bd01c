"""Define `EngineKind`, which describes how engines of one kind are built, served and deployed.

Each kind is declared as `KIND` in a separate folder and listed in `registry.py`. The code that runs
inside Triton is in `runtime/engines/NAME`, where NAME is the kind's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from trtllm_serve_cli.build.build_plan import BuildPlan, BuildRequest, Toolchain
from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.build.tensorrt.versions import Container
from trtllm_serve_cli.choices import Layout
from trtllm_serve_cli.engine_kinds.cpu_memory import CpuHost
from trtllm_serve_cli.engine_kinds.machine import EngineChoice, Finding, Machine
from trtllm_serve_cli.engine_kinds.serving import (
    OUR_CORE_MODEL,
    CoreModel,
    ServingOptions,
    describe_limits,
)

if TYPE_CHECKING:
    from trtllm_serve_cli.sizing.facts import ModelFacts

Values = dict[str, str]
# The program that starts the processes of a multi-GPU engine. `mpirun` starts one Triton process
# per rank. With `llm_api`, TensorRT-LLM's LLM API launcher starts all ranks for a single Triton
# process. With `engine`, the engine starts its own processes.
RankLauncher = Literal["mpirun", "llm_api", "engine"]


class ModelView(Protocol):
    """The properties of an imported model that an engine kind's functions read."""

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
    """The properties of a model repository that an engine kind's functions read."""

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
    """A function that raises `BadInput` if the machine cannot run the model's engine.

    `is_one_machine` is false if the engine can also use GPUs on other machines. `import_again` is
    the command that imports the model again.
    """

    def __call__(
        self, model: ModelView, machine: Machine, *, is_one_machine: bool, import_again: str
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Building:
    """The functions and properties that define how an engine kind builds its engines.

    Some kinds serve checkpoints directly, without a build. Their build plans have no steps.

    - `plan` returns the build plan for a request.
    - `complete_options` adds the build options that the repository's parameters require.
    - `formats` are the supported checkpoint formats ("hf", "gguf").
    - `tools` are the Python distributions that the build uses. The toolchain records their
      versions.
    - `needs_weights` is false if the build does not read the checkpoint's weights.
    - `request_options` are the options in the `engine` section of tllm.yaml that this kind supports
      but some other kinds do not, except `dir`, which all kinds with a build support.
    - `describe` returns the `Engine` for a checkpoint that is served directly. It is None if the
      kind requires a build.
    - `no_build_reason` is a sentence that explains to the user why nothing is built. It is empty if
      the kind requires a build.
    - `describe_built` returns values for `Engine` fields. Its arguments are the engine folder, the
      checkpoint and the details from the plan. The last build step calls this function.
    - `describe_source` returns the `Engine` for a folder that tllm did not write. Its arguments are
      the model name, the engine folder, the tokenizer folder and the source.
    - `read_details` returns the value of `Engine.details` for an engine folder.
    - `preview` returns the `Engine` that a build would create, as far as it is known before the
      build. Its arguments are the model facts, the checkpoint format and the `--quantization`
      value. `preview` is None if default limits do not depend on the machine's memory.
    """

    plan: Callable[[BuildRequest, Toolchain], BuildPlan]
    complete_options: Callable[[EngineOptions, Mapping[str, str]], EngineOptions] = (
        lambda options, parameters: options
    )
    formats: frozenset[str] = frozenset({"hf"})
    tools: tuple[str, ...] = ()
    needs_weights: bool = True
    request_options: frozenset[str] = frozenset()
    describe: Callable[[BuildRequest, Toolchain], Engine] | None = None
    no_build_reason: str = ""
    describe_built: Callable[[Path, Path, Mapping[str, Any]], dict[str, Any]] | None = None
    describe_source: Callable[[str, Path, Path, str], Engine] | None = None
    read_details: Callable[[Path], Any] | None = None
    preview: Callable[[ModelFacts, str, str | None], Engine] | None = None


@dataclass(frozen=True, slots=True)
class Serving:
    """The functions and properties that define how an engine kind serves its engines.

    - `layouts` are the repository layouts that this kind supports.
    - `parameters` are the template parameters that this kind supports, in addition to the
      parameters that all kinds support.
    - `plan_values` computes parameter values from the engine, the options and the user's
      parameters.
    - `core` is the Python model or C++ backend that runs the engine.
    - `merged` are the parameters whose value from `plan_values` already includes the user's value.
    - `check_values` raises `BadInput` if the engine does not support the final values.
    - `empty_is_default` is true if TensorRT-LLM chooses a default for each parameter that is empty.
    - `describe_draft` returns the engine that generates draft tokens in the `tensorrt_llm_draft`
      model, or None if `draft_parameter` is not set. It raises `BadInput` if the engine cannot
      generate draft tokens for the model.
    - `draft_parameter` is the parameter for the draft engine folder. It is empty if engines of this
      kind cannot use a draft model.
    - `contract_version` returns the TensorRT-LLM version that determines the models' tensors and
      parameters, or an empty string for the newest version.
    - `backends` maps each layout that does not use Triton's Python backend to the backend that it
      requires. It is None if all layouts use the Python backend.
    - `native_layout` is the layout that makes `--engine auto` choose this kind, if the kind reads
      the checkpoint's format.
    - `describe_limits` returns the engine's limits as text, or an empty string if they are unknown.
    - `model_yaml` returns the arguments that `model.yaml` contains for TensorRT-LLM's LLM API, and
      the entries that remain in `config.pbtxt`. It is None if the kind does not use `model.yaml`.
    """

    layouts: tuple[Layout, ...]
    parameters: frozenset[str]
    plan_values: Callable[[Engine, ServingOptions, Mapping[str, str]], Values]
    core: CoreModel = OUR_CORE_MODEL
    merged: frozenset[str] = frozenset()
    check_values: Callable[[Engine, Mapping[str, str]], None] = lambda engine, values: None
    empty_is_default: bool = False
    describe_draft: Callable[[Engine, Mapping[str, str]], Engine | None] = lambda engine, values: (
        None
    )
    draft_parameter: str = ""
    contract_version: Callable[[Engine], str] = lambda engine: ""
    backends: Mapping[str, str] | None = None
    native_layout: Layout | None = None
    describe_limits: Callable[[Engine, Mapping[str, str], CpuHost | None], str] = describe_limits
    model_yaml: Callable[[Mapping[str, str]], tuple[dict[str, Any], Values]] | None = None


@dataclass(frozen=True, slots=True)
class ContainerFit:
    """The software that a container needs to serve a model, and a public image with this software.

    `needs` names the software, for example "Triton and vLLM". `image` is None if no suitable image
    is known. `container` describes the NVIDIA container release with this software, including the
    CUDA version if known. It is None if no release is known.
    """

    needs: str
    image: str | None = None
    container: Container | None = None


@dataclass(frozen=True, slots=True)
class Deployment:
    """The requirements for machines and containers that run an engine kind.

    - `fit_container` returns the software that a container needs to serve a model, and an image
      that includes the software.
    - `count_gpus` returns the number of GPUs for one engine.
    - `ranks` is the program that starts the processes of a multi-GPU engine.
    - `refuses_mpirun` is the reason why `mpirun` cannot start the server. It is empty if `mpirun`
      can start the server.
    - `check_fits` checks whether a machine can run a model's engine. It is None if engines of this
      kind run on any machine.
    - `reports_waiting` returns whether the server's metrics include the number of requests waiting
      in the engine.
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
    """The definition of an engine kind.

    - `summary` describes the kind in a few words.
    - `package` is the distribution that runs the engine. It is None if the engine requires no
      package.
    - `any_python` is true if the package may be installed for another Python on the machine.
    - `converts_to_fp8` is true if `--quantization fp8` converts unquantized checkpoints.
    - `offer` returns this kind as a choice for `--engine auto`, or None if the kind does not suit
      the machine. Its arguments are the machine and the requested TensorRT-LLM version.
    - `require` returns the Python that runs the engine, or an empty string for Triton's Python. It
      raises `MissingPart` if the package is not installed.
    - `check_machine` returns the finding that `tllm doctor` reports for the kind, or None.
    - `runtime_folder` is the folder with the code that runs inside Triton. If it is None, the code
      is in `runtime/engines`.
    """

    name: str
    summary: str
    building: Building
    serving: Serving
    deployment: Deployment
    package: str | None = None
    any_python: bool = False
    converts_to_fp8: bool = False
    offer: Callable[[Machine, str | None], EngineChoice | None] = _offers_nothing
    require: Callable[[Machine], str] = _needs_nothing
    check_machine: Callable[[Machine], Finding | None] = _checks_nothing
    runtime_folder: Path | None = None

    @property
    def serves_checkpoints(self) -> bool:
        """True if this kind serves checkpoints directly, without a build."""
        return self.building.describe is not None

    @property
    def runs_in_triton_backend(self) -> bool:
        """True if a Triton backend runs the engine and reads the parameters."""
        return self.serving.core.backend_parameter is not None
