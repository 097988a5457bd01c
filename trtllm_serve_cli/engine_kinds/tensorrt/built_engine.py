"""Read TensorRT engines, which contain a `config.json` and one engine file per GPU.

Since TensorRT-LLM 0.8, `trtllm-build` writes a `config.json` with the sections `pretrained_config`
and `build_config`. In 0.11, the `max_seq_len` field replaced the sum of `max_input_len` and
`max_output_len`. Before 0.8, each model's build.py script wrote a `config.json` with the sections
`builder_config` and `plugin_config`. This file does not contain the TensorRT-LLM version. Sources:
tensorrt_llm/builder.py and examples/*/build.py in NVIDIA/TensorRT-LLM 0.5.0 to 0.8.0.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_serve_cli.build.checkpoint_facts import read_tokenizer_facts
from trtllm_serve_cli.build.engine import TOKENIZER_FOLDER, Engine, read_build_record
from trtllm_serve_cli.engine_kinds.tokenizer_files import copy_tokenizer
from trtllm_serve_cli.errors import BadInput

# Values of `speculative_decoding_mode` in `build_config` for engines that use a draft model.
# `trtllm-build` writes either the name or the number of
# `SpeculativeDecodingMode.DRAFT_TOKENS_EXTERNAL` (tensorrt_llm/models/modeling_utils.py).
_EXTERNAL_DRAFTS = (2, "draft_tokens_external", "DRAFT_TOKENS_EXTERNAL")


@dataclass(frozen=True, slots=True)
class TensorRtBuild:
    """The build settings of a TensorRT engine.

    Lengths are in tokens.

    - `world_size`: the number of GPUs that the engine runs on.
    - `max_num_tokens`: the token limit per step, or None if the engine's files do not contain it.
    - `has_paged_context_fmha`: true if the engine was built with paged context FMHA, which KV cache
      reuse and chunked context require.
    - `accepts_drafts`: true if the engine can verify a draft model's tokens.
    - `file_name`: the name of each rank's engine file, with `{}` in place of the rank.
    """

    version: str
    architecture: str
    dtype: str
    logits_dtype: str
    quantization: str
    vocab_size: int
    max_position_embeddings: int
    max_batch_size: int
    max_beam_width: int
    max_seq_len: int
    world_size: int
    max_num_tokens: int | None = None
    has_paged_context_fmha: bool = False
    accepts_drafts: bool = False
    file_name: str = "rank{}.engine"


def read_tensorrt_build(directory: Path) -> TensorRtBuild:
    """Return the build settings of the engine in `directory`.

    Raise `BadInput` if the engine is missing, incomplete or not readable.
    """
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        build = (
            parse_legacy_build(config, directory) if "builder_config" in config else _parse(config)
        )
    except FileNotFoundError as error:
        raise BadInput(
            f"{directory} does not contain a TensorRT engine.",
            why="the folder does not contain config.json",
            next_step="pass trtllm-build's output folder with -s engine:DIR",
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f"{path} is not a valid TensorRT engine configuration.",
            why=f"{type(error).__name__}: {error}",
            next_step="pass the output folder of TensorRT-LLM's trtllm-build or build.py with -s "
            "engine:DIR",
        ) from error
    missing = [rank.name for rank in _ranks(directory, build) if not rank.exists()]
    if missing:
        raise BadInput(
            f"The engine in {directory} is incomplete.",
            why=f"the engine has {build.world_size} ranks, but the folder does not contain "
            f"{', '.join(missing[:5])}",
            next_step=(
                "copy the missing files to this folder, or build the engine again; `ls "
                f"{shlex.quote(str(directory))}` lists the files"
            ),
        )
    return build


def built_of(engine: Engine) -> TensorRtBuild:
    """Return the build settings of a TensorRT engine."""
    assert isinstance(engine.details, TensorRtBuild)
    return engine.details


def describe_built(directory: Path, checkpoint: Path, details: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the tokenizer to the engine folder and return values for `Engine` fields.

    The copy makes the folder self-contained, so a container needs only this folder to serve the
    engine.
    """
    tokenizer = copy_tokenizer(checkpoint, directory / TOKENIZER_FOLDER)
    return _fields_of(read_tensorrt_build(directory), tokenizer)


def describe_source(name: str, directory: Path, tokenizer_dir: Path, source: str) -> Engine:
    """Return the engine that `trtllm-build` or build.py wrote to `directory`.

    Raise `BadInput` if the engine is missing, incomplete or not readable, or if `tokenizer_dir`
    does not contain a valid tokenizer.
    """
    build = read_tensorrt_build(directory)
    return Engine(
        path=directory,
        kind="tensorrt",
        model_name=name,
        source=source,
        fingerprint=fingerprint_of(directory, build),
        details=build,
        **_fields_of(build, tokenizer_dir),
    )


def _fields_of(build: TensorRtBuild, tokenizer_dir: Path) -> dict[str, Any]:
    return {
        "architecture": build.architecture,
        "weights": build.dtype if build.quantization == "none" else build.quantization,
        "vocab_size": build.vocab_size,
        "max_position_embeddings": build.max_position_embeddings,
        **dataclasses.asdict(read_tokenizer_facts(tokenizer_dir)),
    }


def fingerprint_of(directory: Path, build: TensorRtBuild) -> str:
    """Return a fingerprint that changes when the engine is rebuilt."""
    digest = hashlib.sha256((directory / "config.json").read_bytes())
    for rank in _ranks(directory, build):
        stat = rank.stat()
        digest.update(f"{rank.name} {stat.st_size} {stat.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def has_paged_context_fmha(build_config: Mapping[str, Any]) -> bool:
    """Return whether the engine was built with paged context FMHA."""
    plugins = build_config.get("plugin_config") or {}
    return bool(plugins.get("use_paged_context_fmha", False))


def accepts_drafts(build_config: Mapping[str, Any]) -> bool:
    """Return whether the engine can verify a draft model's tokens.

    In 0.9 and earlier, `build_config` does not contain `speculative_decoding_mode`. In these
    versions, any engine with a `max_draft_len` can verify draft tokens.
    """
    mode = build_config.get("speculative_decoding_mode")
    if mode is None:
        return bool(build_config.get("max_draft_len"))
    return mode in _EXTERNAL_DRAFTS


def _ranks(directory: Path, build: TensorRtBuild) -> list[Path]:
    return [directory / build.file_name.format(rank) for rank in range(build.world_size)]


def _find_version(directory: Path) -> str:
    """Return the TensorRT-LLM version with which tllm built the engine, or "unknown"."""
    record = read_build_record(directory)
    tools = record.facts.get("tools", {}) if record else {}
    return str(tools.get("tensorrt_llm", "unknown"))


def _parse(config: dict[str, Any]) -> TensorRtBuild:
    model, build = config["pretrained_config"], config["build_config"]
    length = build.get("max_seq_len") or build["max_input_len"] + build["max_output_len"]
    quantization = model.get("quantization") or {}
    return TensorRtBuild(
        version=str(config.get("version", "unknown")),
        architecture=str(model["architecture"]),
        dtype=str(model["dtype"]),
        logits_dtype=str(model.get("logits_dtype") or "float32"),
        quantization=str(quantization.get("quant_algo") or "none"),
        vocab_size=int(model["vocab_size"]),
        max_position_embeddings=int(model.get("max_position_embeddings") or length),
        max_batch_size=int(build["max_batch_size"]),
        max_beam_width=int(build.get("max_beam_width") or 1),
        max_seq_len=int(length),
        world_size=int((model.get("mapping") or {}).get("world_size") or 1),
        max_num_tokens=int(build.get("max_num_tokens") or 0) or None,
        has_paged_context_fmha=has_paged_context_fmha(build),
        accepts_drafts=accepts_drafts(build),
    )


def parse_legacy_build(config: Mapping[str, Any], directory: Path) -> TensorRtBuild:
    """Parse the `config.json` that build.py wrote for the engine in `directory`."""
    builder = config["builder_config"]
    name, dtype = builder["name"], builder["precision"]
    tp, pp = int(builder["tensor_parallel"]), int(builder.get("pipeline_parallel") or 1)
    stages = f"_pp{pp}" if pp > 1 else ""
    length = builder["max_input_len"] + builder["max_output_len"]
    return TensorRtBuild(
        version=_find_version(directory),
        architecture=str(name),
        dtype=str(dtype),
        logits_dtype="float32",
        quantization=_name_quantization(builder),
        vocab_size=int(builder["vocab_size"]),
        max_position_embeddings=int(builder.get("max_position_embeddings") or length),
        max_batch_size=int(builder["max_batch_size"]),
        max_beam_width=int(builder.get("max_beam_width") or 1),
        max_seq_len=int(length),
        world_size=tp * pp,
        has_paged_context_fmha=has_paged_context_fmha(config),
        accepts_drafts=accepts_drafts(builder),
        file_name=f"{name}_{dtype}_tp{tp}{stages}_rank{{}}.engine",
    )


def _name_quantization(builder: Mapping[str, Any]) -> str:
    """Return the weight format, for example "int8_sq".

    The bits of `quant_mode` are defined in tensorrt_llm/quantization/mode.py.
    """
    mode = int(builder.get("quant_mode") or 0)
    int4, int8, activations, fp8 = (bool(mode & bit) for bit in (1, 2, 4, 256))
    if int8 and activations:
        return "int8_sq"
    return "int4" if int4 else "int8" if int8 else "fp8" if fp8 else "none"
