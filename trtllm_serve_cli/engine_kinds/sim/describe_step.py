"""Step of a build: puts the tokenizer beside a simulated engine, and says what that is.

python -m trtllm_serve_cli.engine_kinds.sim.describe_step DIRECTORY --simulation JSON ...
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from trtllm_serve_cli.build.checkpoint_facts import (
    read_context_length,
    read_text_config,
    read_tokenizer_facts,
)
from trtllm_serve_cli.build.engine import Engine, write_engine
from trtllm_serve_cli.engine_kinds.openvino.describe_step import tokenizer_facts
from trtllm_serve_cli.engine_kinds.tensorrt.describe_step import copy_tokenizer
from trtllm_serve_cli.runtime.engines.sim.timing import SIMULATION_FILE, parse_simulation


def main() -> None:
    """Describe; any failure ends the process with a traceback for the log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    for name in ("model-name", "source", "architecture", "fingerprint", "simulation"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    arguments = parser.parse_args()
    simulation = parse_simulation(arguments.simulation)
    text = json.dumps(simulation.to_json(), indent=2) + "\n"
    (arguments.directory / SIMULATION_FILE).write_text(text, encoding="utf-8")
    engine = Engine(
        path=arguments.directory,
        kind="sim",
        model_name=arguments.model_name,
        source=arguments.source,
        fingerprint=arguments.fingerprint,
        architecture=arguments.architecture,
        weights="no",
        max_position_embeddings=read_context_length(arguments.checkpoint),
        **_tokenizer_facts(arguments.checkpoint, arguments.directory),
    )
    write_engine(engine, arguments.directory)


def _tokenizer_facts(checkpoint: Path, directory: Path) -> dict[str, Any]:
    if checkpoint.is_dir():
        copy_tokenizer(checkpoint, directory)
        vocab_size = int(read_text_config(checkpoint)["vocab_size"])
        return {"vocab_size": vocab_size, **dataclasses.asdict(read_tokenizer_facts(directory))}
    import openvino_genai

    vocabulary = openvino_genai.Tokenizer(directory).get_vocab()
    return {"vocab_size": max(vocabulary.values()) + 1, **tokenizer_facts(directory)}


if __name__ == "__main__":
    main()
