"""Write and read a simulated engine's timing data and tokenizer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtllm_serve_cli.build.checkpoint_facts import (
    read_context_length,
    read_embedding_if_any,
    read_text_config,
    read_tokenizer_facts,
)
from trtllm_serve_cli.engine_kinds.openvino.described import read_tokenizer
from trtllm_serve_cli.engine_kinds.tokenizer_files import copy_tokenizer
from trtllm_serve_cli.runtime.engines.sim.timing import (
    SIMULATION_FILE,
    Simulation,
    parse_simulation,
)


def describe_built(directory: Path, checkpoint: Path, details: Mapping[str, Any]) -> dict[str, Any]:
    """Write the simulation in `details` to `directory` and return the known `Engine` fields.

    For a Hugging Face checkpoint, also copy the tokenizer to `directory`.
    """
    simulation = parse_simulation(json.dumps(details))
    text = json.dumps(simulation.to_json(), indent=2) + "\n"
    (directory / SIMULATION_FILE).write_text(text, encoding="utf-8")
    return {
        "embedding": read_embedding_if_any(checkpoint),
        "max_position_embeddings": read_context_length(checkpoint),
        **_describe_tokenizer(checkpoint, directory),
    }


def read_simulation_file(directory: Path) -> Simulation:
    """Return the simulation of the engine in `directory`.

    Raise `OSError` or `ValueError` if the simulation cannot be read.
    """
    return parse_simulation((directory / SIMULATION_FILE).read_text(encoding="utf-8"))


def _describe_tokenizer(checkpoint: Path, directory: Path) -> dict[str, Any]:
    if checkpoint.is_dir():
        copy_tokenizer(checkpoint, directory)
        vocab_size = int(read_text_config(checkpoint)["vocab_size"])
        return {"vocab_size": vocab_size, **dataclasses.asdict(read_tokenizer_facts(directory))}
    import openvino_genai

    vocabulary = openvino_genai.Tokenizer(directory).get_vocab()
    return {"vocab_size": max(vocabulary.values()) + 1, **read_tokenizer(directory, checkpoint)}
