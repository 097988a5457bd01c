"""Send requests to OpenAI-compatible servers, such as vLLM, SGLang and trtllm-serve.

`OpenAIModel` is a source of responses for the functions in `client.ask`. The modules
`request_body`, `response_pieces` and `failures` convert requests, responses and errors without I/O.
The benchmark also uses these modules.
"""
