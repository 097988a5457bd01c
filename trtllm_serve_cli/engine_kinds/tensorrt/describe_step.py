"""Step of a build: puts the tokenizer beside a TensorRT engine, and says what that is.

python -m trtllm_serve_cli.engine_kinds.tensorrt.describe_step DIRECTORY --checkpoint PATH ...

So the engine's folder is all that a server needs of the model, wherever it is mounted.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
from pathlib import Path

from trtllm_serve_cli.build.engine import TOKENIZER_FOLDER, write_engine
from trtllm_serve_cli.engine_kinds.served_checkpoint import describe_tensorrt

# The small files of a checkpoint; `.py` is there only where its code was trusted.
_SMALL_FILES = (".json", ".jinja", ".model", ".tiktoken", ".txt", ".py")


def main() -> None:
    """Describe; any failure ends the process with a traceback for the log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    for name in ("model-name", "source", "fingerprint"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    arguments = parser.parse_args()
    tokenizer = copy_tokenizer(arguments.checkpoint, arguments.directory / TOKENIZER_FOLDER)
    engine = describe_tensorrt(
        arguments.model_name, arguments.directory, tokenizer, arguments.source
    )
    engine = dataclasses.replace(engine, fingerprint=arguments.fingerprint)
    write_engine(engine, arguments.directory)


def copy_tokenizer(checkpoint: Path, to: Path) -> Path:
    """A folder that Transformers loads the tokenizer from; the weights stay where they are."""
    to.mkdir(exist_ok=True)
    for path in checkpoint.iterdir():
        if path.suffix in _SMALL_FILES and not path.name.endswith(".index.json"):
            shutil.copyfile(path, to / path.name)
    return to


if __name__ == "__main__":
    main()
