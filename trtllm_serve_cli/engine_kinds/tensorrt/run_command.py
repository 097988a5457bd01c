"""Plan the command that runs a TensorRT engine without a server.

The command runs TensorRT-LLM's `examples/run.py` script. Source of the script's options:
examples/run.py and add_common_args in examples/utils.py of NVIDIA/TensorRT-LLM, versions 0.9 to
0.17.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtllm_serve_cli.build.tensorrt.toolkit import find_examples_dir
from trtllm_serve_cli.build.tensorrt.versions import parse_version
from trtllm_serve_cli.engine_kinds.tensorrt.built_engine import read_tensorrt_build
from trtllm_serve_cli.errors import BadInput

# Maps request fields to options of run.py.
_FLAGS = {
    "max_tokens": "--max_output_len",
    "temperature": "--temperature",
    "top_k": "--top_k",
    "top_p": "--top_p",
    "seed": "--random_seed",
    "beam_width": "--num_beams",
    "length_penalty": "--length_penalty",
    "repetition_penalty": "--repetition_penalty",
    "presence_penalty": "--presence_penalty",
    "frequency_penalty": "--frequency_penalty",
    "stop_words": "--stop_words",
    "bad_words": "--bad_words",
}
_DEFAULTS = {"max_tokens": 200}


def plan_run(
    engine_dir: Path, tokenizer_dir: str, prompt: str, request: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the command that generates a response to `prompt` with the engine in `engine_dir`.

    `request` contains the request fields that the user set. The command starts one process per
    rank. Raise `BadInput` if the script does not support a field, or if the engine cannot be read
    or was built with an unknown TensorRT-LLM version.
    """
    fields = {**_DEFAULTS, **request}
    for name in fields:
        if name not in _FLAGS:
            raise BadInput(
                f"{name} cannot be set when a TensorRT engine runs without a server.",
                why="TensorRT-LLM's run.py script does not have an option for this field",
                next_step=f"omit {name}, or start a server with `tllm start`",
            )
    build = read_tensorrt_build(engine_dir)
    script = find_examples_dir(parse_version(build.version)) / "run.py"
    arguments = [
        "--engine_dir", str(engine_dir), "--tokenizer_dir", tokenizer_dir,
        "--no_prompt_template", "--input_text", prompt,
    ]  # fmt: skip
    for name, value in fields.items():
        values = value if isinstance(value, list | tuple) else (value,)
        arguments += [_FLAGS[name], *map(str, values)]
    ranks = ("mpirun", "-n", str(build.world_size), "--allow-run-as-root")
    return (*(ranks if build.world_size > 1 else ()), "python3", str(script), *arguments)
