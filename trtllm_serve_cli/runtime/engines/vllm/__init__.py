"""The engine kind `vllm`, which runs models with vLLM."""
