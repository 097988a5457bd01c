"""The engine kind `vllm`: vLLM."""
