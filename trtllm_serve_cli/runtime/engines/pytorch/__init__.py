"""TensorRT-LLM's LLM API as an engine."""
