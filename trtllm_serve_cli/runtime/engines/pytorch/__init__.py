"""The engine kind `pytorch`, which runs models with TensorRT-LLM's LLM API."""
