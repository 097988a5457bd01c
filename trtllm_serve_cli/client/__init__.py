"""Send requests to a running server.

`ask.stream` yields the pieces of a response as they arrive, and `ask.generate` returns the whole
response. Both functions take an `Endpoint`, the name of a text model and a `GenerateRequest`. In
the inflight layout, the text models are `ensemble`, `tensorrt_llm_bls` and the Triton model named
after the imported model. For an OpenAI-compatible server, the functions take an `OpenAIModel`
(`transport.openai.exchange`) instead of an `Endpoint`.

Closing a response early cancels the request on the server, except for non-streaming responses over
HTTP. Failures are raised as `TllmError`s with a next step.
"""
