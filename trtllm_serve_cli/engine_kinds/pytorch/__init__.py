"""TensorRT-LLM's LLM API, which serves a checkpoint directly."""
