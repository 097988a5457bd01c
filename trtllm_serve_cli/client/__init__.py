"""Send requests to a running server, for `tllm infer` and the readiness probes.

`ask.stream` yields the pieces of a response as they arrive, and `ask.generate` returns the whole
response. Both functions take an `Endpoint`, the name of a text model and a `GenerateRequest`. In
the inflight layout, the text models are `ensemble`, `tensorrt_llm_bls` and the Triton model named
after the imported model. All three have the same inputs and outputs. For an OpenAI-compatible
server, the functions take an `OpenAIModel` (`transport.openai.exchange`) instead of an `Endpoint`.

Closing a response early cancels the request on the server, except for non-streaming responses over
HTTP. Every failure is raised as a `TllmError` with a next step.
"""
