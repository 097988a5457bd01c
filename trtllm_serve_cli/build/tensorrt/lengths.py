"""Choose the length-limit flags, which depend on the TensorRT-LLM version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from packaging.version import Version

from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.build.tensorrt.command import RequestedFlag, request_value
from trtllm_serve_cli.build.tensorrt.flags import Flag
from trtllm_serve_cli.errors import BadInput


def split_length(
    options: EngineOptions, flags: Mapping[str, Flag], version: Version
) -> Iterator[RequestedFlag]:
    """Yield the flags that set the length limits, for a program that supports `flags`.

    Versions before 0.11 limit the input and output lengths separately. For these versions, raise
    `BadInput` if `max_seq_len` leaves no room for output tokens.
    """
    yield from request_value("--max_input_len", options.max_input_len, "max_input_len")
    if options.max_seq_len is None:
        return
    if "--max_seq_len" in flags:
        yield RequestedFlag("--max_seq_len", (options.max_seq_len,), "max_seq_len")
        return
    longest_input = options.max_input_len or int(flags["--max_input_len"].default or 0)
    if longest_input >= options.max_seq_len:
        raise BadInput(
            f"--max-seq-len {options.max_seq_len} leaves no room for output tokens.",
            why=f"TensorRT-LLM {version} reserves {longest_input} tokens for the input",
            next_step=f"set --max-input-len below {options.max_seq_len}",
        )
    yield RequestedFlag("--max_output_len", (options.max_seq_len - longest_input,), "max_seq_len")
