"""Stream a response from a running server with NVIDIA's client, without tllm.

    python examples/streaming_client.py [--address 127.0.0.1:8001] [--model ensemble] PROMPT

Expected output for the prompt "One, two, three," on stdout: streaming_client.expected
"""

from __future__ import annotations

import argparse
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient


def tensor(name: str, value: Any, dtype: Any, triton_type: str) -> grpcclient.InferInput:
    """Return an input with one row and one value."""
    made = grpcclient.InferInput(name, [1, 1], triton_type)
    made.set_data_from_numpy(np.array([[value]], dtype=dtype))
    return made


def stream(address: str, model: str, prompt: str, max_tokens: int) -> Iterator[str]:
    """Yield the pieces of the response as they arrive."""
    arrived: queue.Queue[Any] = queue.Queue()
    inputs = [
        tensor("text_input", prompt.encode(), object, "BYTES"),
        tensor("max_tokens", max_tokens, np.int32, "INT32"),
        tensor("stream", True, np.bool_, "BOOL"),
    ]
    with grpcclient.InferenceServerClient(address) as client:
        client.start_stream(lambda result, error: arrived.put(error or result))
        client.async_stream_infer(model, inputs, enable_empty_final_response=True)
        while True:
            result = arrived.get()
            if isinstance(result, Exception):
                raise SystemExit(f"the server reported: {result}")
            text = result.as_numpy("text_output")
            if text is not None:
                yield text.reshape(-1)[0].decode()
            if result.get_response().parameters["triton_final_response"].bool_param:
                return


def main() -> None:
    """Send the prompt and print the pieces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompt")
    parser.add_argument("--address", default="127.0.0.1:8001")
    parser.add_argument("--model", default="ensemble")
    parser.add_argument("--max-tokens", type=int, default=8)
    arguments = parser.parse_args()
    for piece in stream(arguments.address, arguments.model, arguments.prompt, arguments.max_tokens):
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
