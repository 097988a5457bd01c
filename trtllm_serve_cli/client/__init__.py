"""Requests to a running Triton server: what `tllm infer` and every readiness probe send.

Takes an `Endpoint`, the name of a text model (`ensemble`, `tensorrt_llm_bls` or the imported
model's own name: their tensors are the same) and a `GenerateRequest`; gives `Piece`s as they
arrive, or a `Completion`. Guarantees: an answer that is left early is cancelled on the server, over
gRPC and HTTP; whatever goes wrong on the way is a `TllmError` with a next step.
"""

from trtllm_serve_cli.client.address import parse_address
from trtllm_serve_cli.client.ask import generate, stream, stream_apart
from trtllm_serve_cli.client.batch import parse_batch, run_batch
from trtllm_serve_cli.client.cancellation import Cancellation
from trtllm_serve_cli.client.endpoint import RESTRICTED_HEADER, Endpoint, Tls
from trtllm_serve_cli.client.generate import (
    Completion,
    GenerateRequest,
    Interface,
    Piece,
    RawTensor,
    summarize_pieces,
)
from trtllm_serve_cli.client.server import (
    IndexedModel,
    ModelInfo,
    change_model,
    fetch_index,
    fetch_model_config,
    probe_token,
)

__all__ = [
    "RESTRICTED_HEADER",
    "Cancellation",
    "Completion",
    "Endpoint",
    "GenerateRequest",
    "IndexedModel",
    "Interface",
    "ModelInfo",
    "Piece",
    "RawTensor",
    "Tls",
    "change_model",
    "fetch_index",
    "fetch_model_config",
    "generate",
    "parse_address",
    "parse_batch",
    "probe_token",
    "run_batch",
    "stream",
    "stream_apart",
    "summarize_pieces",
]
