"""vLLM, which serves a checkpoint as it is."""
