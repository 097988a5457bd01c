"""Convert a GGUF file to an OpenVINO model and tokenizer, as a build step.

    python -m trtllm_serve_cli.engine_kinds.openvino.gguf_step FILE DIRECTORY [--tokenizer-only]

OpenVINO GenAI saves the converted model in the GGUF file's folder. Therefore, the step first
creates a symbolic link to the GGUF file in DIRECTORY. After the conversion, the step renames the
model's layers to the names that LoRA adapters use.

With `--tokenizer-only`, the step converts only the tokenizer.
"""

from __future__ import annotations

import sys
from pathlib import Path

from trtllm_serve_cli.engine_kinds.openvino.module_names import name_modules


def main() -> None:
    """Convert the GGUF file. Exit with an error message if the tokenizer cannot be converted."""
    import openvino_genai

    source, directory = Path(sys.argv[1]), Path(sys.argv[2])
    is_tokenizer_only = "--tokenizer-only" in sys.argv[3:]
    link = directory / "checkpoint.gguf"
    link.symlink_to(source.absolute())
    try:
        if is_tokenizer_only:
            openvino_genai.Tokenizer(str(link), enable_save_ov_model=True)
        else:
            openvino_genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
    finally:
        link.unlink()
    if not (directory / "openvino_tokenizer.xml").exists():
        sys.exit("OpenVINO GenAI could not convert the tokenizer of this GGUF file")
    if not is_tokenizer_only:
        _name_modules(directory)


def _name_modules(directory: Path) -> None:
    import openvino

    model = openvino.Core().read_model(directory / "openvino_model.xml")
    try:
        name_modules(model)
    except LookupError as error:
        # The engine is usable without LoRA adapters, so the build continues. Requests with an
        # adapter are rejected.
        print(f"LoRA adapters will not work, because the layers cannot be named: {error}")
        return
    # Save the model under another name first, because the loaded model still memory-maps
    # `openvino_model.bin`.
    openvino.save_model(model, directory / "named.xml", compress_to_fp16=False)
    for suffix in (".bin", ".xml"):
        (directory / "named").with_suffix(suffix).replace(
            (directory / "openvino_model").with_suffix(suffix)
        )


if __name__ == "__main__":
    main()
