"""The `vllm` engine kind, which runs models with vLLM."""
