"""Step of a build: reads an OpenVINO engine and says in `engine.json` what it is.

python -m trtllm_serve_cli.engine_kinds.openvino.describe_step DIRECTORY --checkpoint PATH ...
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from trtllm_serve_cli.build.checkpoint_facts import read_context_length
from trtllm_serve_cli.build.engine import Engine, write_engine


def main() -> None:
    """Describe; any failure ends the process with a traceback for the log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    for name in ("model-name", "source", "architecture", "weights", "fingerprint"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    arguments = parser.parse_args()
    engine = Engine(
        path=arguments.directory,
        kind="openvino",
        model_name=arguments.model_name,
        source=arguments.source,
        fingerprint=arguments.fingerprint,
        architecture=arguments.architecture,
        weights=arguments.weights,
        vocab_size=_vocab_size(arguments.directory),
        max_position_embeddings=read_context_length(arguments.checkpoint),
        **tokenizer_facts(arguments.directory),
    )
    write_engine(engine, arguments.directory)


def _vocab_size(directory: Path) -> int:
    """The last dimension of the logits, which may be more than the tokenizer has tokens."""
    import openvino

    model = openvino.Core().read_model(directory / "openvino_model.xml")
    return int(model.output("logits").get_partial_shape()[-1].get_length())


def tokenizer_facts(directory: Path) -> dict[str, Any]:
    """What clients need to know of the OpenVINO tokenizer there, as fields of `Engine`."""
    import openvino_genai

    tokenizer = openvino_genai.Tokenizer(directory)
    bos_id = tokenizer.get_bos_token_id()
    first = tokenizer.encode("a").input_ids.data.reshape(-1)[0]
    return {
        "chat_template": tokenizer.get_original_chat_template() or tokenizer.chat_template or "",
        "bos_token": tokenizer.get_bos_token(),
        "eos_token": tokenizer.get_eos_token(),
        "adds_bos": bool(bos_id >= 0 and first == bos_id),
    }


if __name__ == "__main__":
    main()
