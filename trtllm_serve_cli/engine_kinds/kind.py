"""Define `EngineKind`, which describes how engines of one kind are built, served and deployed.

Each kind is declared as `KIND` in its own folder and listed in `registry.py`. No other code
compares engine kinds by name. The code that runs inside Triton is in a folder of
`runtime/engines` with the name of the kind.
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
# The program that starts the processes of an engine on several GPUs. `mpirun` starts one Triton
# process per rank. With `llm_api`, the launcher of TensorRT-LLM's LLM API starts all ranks for a
# single Triton process. With `engine`, the engine starts its own processes.
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

    `is_one_machine` is false if the engine can also use GPUs of other machines. `import_again` is
    the command that imports the model again.
    """

    def __call__(
        self, model: ModelView, machine: Machine, *, is_one_machine: bool, import_again: str
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Building:
    """The functions and properties that define how an engine kind builds its engines.

    `formats` are the supported checkpoint formats ("hf", "gguf"). `tools` are the Python
    distributions that the build uses, and whose versions the toolchain records. `needs_weights` is
    false if the build does not read the checkpoint's weights. `request_options` are the fields of
    `BuildRequest` that this kind supports but some other kinds do not.

    `complete_options` adds the build options that the repository's parameters require. The last
    step of a build calls `describe_built` with the engine's folder, the checkpoint and the details
    from the plan. `describe_built` returns values for fields of `Engine`. Some kinds serve
    checkpoints directly, without a build; their build plans have no steps. For these kinds,
    `describe` returns the `Engine`, and `no_build_reason` is a sentence that explains why nothing
    is built.

    `describe_source` returns the `Engine` for a folder that tllm did not write. Its arguments are
    the model's name, the engine's folder, the tokenizer's folder and the source. `read_details`
    returns the value of `Engine.details` for an engine's folder.

    `preview` is set if the default limits of engines depend on the memory of the machine. It
    returns the `Engine` that a build would create, as far as it is known before the build. Its
    arguments are the facts of the model, the format of the checkpoint and the value of
    `--quantization`.
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

    `parameters` are the template parameters that this kind supports, in addition to the parameters
    that all kinds support. `plan_values` computes parameter values from the engine, the options and
    the user's parameters. For the parameters in `merged`, the value from `plan_values` already
    includes the user's value. `check_values` checks the final values against the engine. If
    `empty_is_default` is set, TensorRT-LLM chooses a default for each parameter that is empty.

    `draft_parameter` is the parameter for the folder of a draft model's engine, or empty if engines
    of this kind cannot use a draft model. `describe_draft` returns the engine in this folder, which
    generates draft tokens in the `tensorrt_llm_draft` model, or None if the parameter is not set.
    `describe_draft` raises `BadInput` if this engine cannot generate draft tokens for the model.

    `contract_version` returns the version of TensorRT-LLM that determines the tensors and the
    parameters of the models, or an empty string for the newest version. `backends` maps each layout
    to the Triton backend that the layout requires. For `native_layout`, `--engine auto` chooses
    this kind if the kind reads the checkpoint's format. `describe_limits` returns the engine's
    limits as text, or an empty string if they are unknown. `model_yaml` is set if the file
    `model.yaml` contains arguments for TensorRT-LLM's LLM API. It returns these arguments and the
    entries that remain in `config.pbtxt`.
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

    `image` is None if no suitable image is known. `container` describes the release of NVIDIA's
    container that contains the software, including the CUDA version if known.
    """

    needs: str
    image: str | None = None
    container: Container | None = None


@dataclass(frozen=True, slots=True)
class Deployment:
    """The requirements for machines and containers that run an engine kind.

    `count_gpus` returns the number of GPUs for one engine. `refuses_mpirun` is the reason why
    `mpirun` cannot start the server, or empty if `mpirun` can start it. `fit_container` returns the
    software that a container needs to serve a model, and an image that includes it. `ranks` selects
    the program that starts the engine's processes. `check_fits` is None if engines of this kind run
    on any machine. `reports_waiting` returns whether the server's metrics include the number of
    requests that are waiting in the engine.
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

    `package` is the distribution that runs the engine, or None if the engine requires no package.
    If `any_python` is set, the package may be installed for another Python on the machine.
    `--engine auto` calls `offer` with the machine and the requested version of TensorRT-LLM.
    `offer` returns this kind as a choice, or None if the kind does not suit the machine. `require`
    returns the Python that runs the engine, or an empty string for Triton's Python. It raises
    `MissingPart` if the package is not installed. `check_machine` returns the finding that `tllm
    doctor` reports for the kind, or None.

    `converts_to_fp8` is set if `--quantization fp8` converts unquantized checkpoints.
    `runtime_folder` is the folder with the code that runs inside Triton. If `runtime_folder` is
    None, the code is in `runtime/engines`.
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
