"""The engine kind `pytorch`: TensorRT-LLM's LLM API."""
