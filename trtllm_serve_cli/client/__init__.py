"""Send requests to a running Triton server, for `tllm infer` and the readiness probes.

Input: an `Endpoint`, the name of a text model and a `GenerateRequest`. The text models are
`ensemble`, `tensorrt_llm_bls` and the imported model's own name; their tensors are the same.
Output: `Piece`s as they arrive, or a `Completion`. Closing a response early cancels the request on
the server, over gRPC and HTTP. Every failure is raised as a `TllmError` with a next step.
"""
