"""The `pytorch` engine kind, which runs models with TensorRT-LLM's LLM API."""
