"""vLLM, which serves a checkpoint directly."""
