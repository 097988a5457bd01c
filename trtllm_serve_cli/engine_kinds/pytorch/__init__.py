"""Serve checkpoints directly with TensorRT-LLM's LLM API."""
