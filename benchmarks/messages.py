"""Create gRPC requests to Triton and read its responses, field by field."""

from __future__ import annotations

from typing import Any


def add(request: Any, name: str, datatype: str, value: Any) -> None:
    """Add an input with its content."""
    request.inputs.add(name=name, datatype=datatype, shape=value.shape)
    request.raw_input_contents.append(value.tobytes())


def count_tokens(response: Any) -> int:
    """Return the number of new tokens in a response."""
    assert not response.error_message, response.error_message
    reply = response.infer_response
    for output, content in zip(reply.outputs, reply.raw_output_contents, strict=False):
        if output.name == "num_output_tokens":
            return int.from_bytes(content[:4], "little", signed=True)
    return 0
