"""Request the embedding of a text from a model on Triton."""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import TritonInterface
from trtllm_serve_cli.client.model_info import import_transport
from trtllm_serve_cli.errors import RequestFailed


@dataclass(frozen=True, slots=True)
class Embedding:
    """An embedding, and the number of tokens of its text."""

    values: tuple[float, ...]
    num_input_tokens: int


def embed(
    endpoint: Endpoint,
    model: str,
    text: str,
    interface: TritonInterface = "grpc",
    timeout_s: float | None = None,
) -> Embedding:
    """Return the embedding of a text.

    Raise `NoServer` if the server cannot be reached, or `RequestFailed` if the request fails.
    """
    outputs = import_transport(interface).infer(endpoint, model, {"text_input": text}, timeout_s)
    values, counts = outputs.get("embedding"), outputs.get("num_input_tokens")
    if not values or not counts:
        raise RequestFailed(
            f"{model} did not return an embedding.",
            why=f"the response has the outputs {', '.join(outputs) or 'none'}",
            next_step="check the server's log with `tllm logs`",
        )
    return Embedding(tuple(map(float, values)), int(counts[0]))
