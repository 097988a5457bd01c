"""Step of a build: a GGUF file becomes an OpenVINO IR with its tokenizer.

    python -m trtllm_serve_cli.build.gguf_to_openvino FILE.gguf DIRECTORY

OpenVINO GenAI saves what it made of a GGUF file beside that file, so the file is linked into the
directory first.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Convert; any failure ends the process with its reason on stderr."""
    import openvino_genai

    source, directory = Path(sys.argv[1]), Path(sys.argv[2])
    link = directory / "checkpoint.gguf"
    link.symlink_to(source.absolute())
    try:
        openvino_genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
    finally:
        link.unlink()
    if not (directory / "openvino_tokenizer.xml").exists():
        sys.exit("OpenVINO GenAI could not make a tokenizer out of this GGUF file")


if __name__ == "__main__":
    main()
