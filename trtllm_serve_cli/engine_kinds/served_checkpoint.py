"""Engines that this tool did not make: what is there already is described, and nothing is built."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from trtllm_serve_cli.build.build_plan import facts_of_engine
from trtllm_serve_cli.build.checkpoint_facts import (
    read_context_length,
    read_text_config,
    read_tokenizer_facts,
    read_weight_format,
)
from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.build.fingerprint import fingerprint_of_facts
from trtllm_serve_cli.build.tensorrt_engine import fingerprint_of, read_tensorrt_build
from trtllm_serve_cli.engine_kinds.pytorch.llm_arguments import plan_llm_arguments
from trtllm_serve_cli.engine_kinds.vllm.engine_arguments import plan_vllm_arguments
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sources.checkpoint import Checkpoint


def describe_tensorrt(name: str, directory: Path, tokenizer_dir: Path, source: str) -> Engine:
    """The engine that trtllm-build left in `directory`. Raises `BadInput` for a broken one."""
    build = read_tensorrt_build(directory)
    return Engine(
        path=directory,
        kind="tensorrt",
        model_name=name,
        source=source,
        fingerprint=fingerprint_of(directory, build),
        architecture=build.architecture,
        weights=build.dtype if build.quantization == "none" else build.quantization,
        vocab_size=build.vocab_size,
        max_position_embeddings=build.max_position_embeddings,
        tensorrt=build,
        **dataclasses.asdict(read_tokenizer_facts(tokenizer_dir)),
    )


def describe_vllm(
    name: str,
    checkpoint: Checkpoint,
    options: EngineOptions,
    *,
    trust_remote_code: bool = False,
) -> Engine:
    """A checkpoint as vLLM serves it: as it is.

    Raises `BadInput` for a GGUF file, and for what vLLM cannot do.
    """
    engine = _describe_checkpoint(name, checkpoint, "vllm")
    quantised = read_weight_format(checkpoint.path)
    arguments = plan_vllm_arguments(options, weights=quantised, trust_remote_code=trust_remote_code)
    return _with_arguments(engine, checkpoint, quantised, arguments)


def describe_pytorch(
    name: str,
    checkpoint: Checkpoint,
    options: EngineOptions,
    version: str,
    *,
    trust_remote_code: bool = False,
) -> Engine:
    """A checkpoint as the LLM API of this version of TensorRT-LLM serves it.

    Raises `BadInput` for a GGUF file, and for what the API cannot do.
    """
    engine = _describe_checkpoint(name, checkpoint, "pytorch")
    quantised = read_weight_format(checkpoint.path)
    arguments = plan_llm_arguments(
        options, version, weights=quantised, trust_remote_code=trust_remote_code
    )
    return _with_arguments(engine, checkpoint, quantised, arguments)


def _with_arguments(
    engine: Engine, checkpoint: Checkpoint, quantised: str | None, arguments: dict[str, Any]
) -> Engine:
    weights = quantised or engine.weights
    facts = {**facts_of_engine(checkpoint, engine.kind, weights), "llm_arguments": arguments}
    return dataclasses.replace(
        engine,
        weights=weights,
        fingerprint=fingerprint_of_facts(facts),
        llm_arguments=arguments,
    )


def _describe_checkpoint(name: str, checkpoint: Checkpoint, kind: str) -> Engine:
    if checkpoint.format != "hf":
        raise BadInput(
            f"The engine kind {kind} needs a Hugging Face checkpoint.",
            why=f"{checkpoint.source} is a GGUF file",
            next_step="import the model's checkpoint instead: -s hf:ORG/NAME",
        )
    try:
        config = read_text_config(checkpoint.path)
        vocab_size = int(config["vocab_size"])
        context_length = read_context_length(checkpoint.path)
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{checkpoint.path / 'config.json'} does not describe a language model.",
            why=f"{type(error).__name__}: {error}",
            next_step="name a checkpoint that generates text: -s hf:ORG/NAME",
        ) from error
    weights = str(config.get("torch_dtype") or config.get("dtype") or "as in the checkpoint")
    return Engine(
        path=checkpoint.path,
        kind=kind,
        model_name=name,
        source=checkpoint.source,
        fingerprint=fingerprint_of_facts(facts_of_engine(checkpoint, kind, weights)),
        architecture=checkpoint.architecture,
        weights=weights,
        vocab_size=vocab_size,
        max_position_embeddings=context_length,
        **dataclasses.asdict(read_tokenizer_facts(checkpoint.path)),
    )
