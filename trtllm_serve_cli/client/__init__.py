"""Requests to a running Triton server: what `tllm infer` and every readiness probe send.

Takes an `Endpoint`, the name of a text model (`ensemble`, `tensorrt_llm_bls` or the imported
model's own name: their tensors are the same) and a `GenerateRequest`; gives `Piece`s as they
arrive, or a `Completion`. Guarantees: an answer that is left early is cancelled on the server, over
gRPC and HTTP; whatever goes wrong on the way is a `TllmError` with a next step.
"""
