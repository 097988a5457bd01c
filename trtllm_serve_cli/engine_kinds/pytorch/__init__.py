"""TensorRT-LLM's LLM API, which serves a checkpoint as it is."""
