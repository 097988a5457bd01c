"""Serve checkpoints directly with vLLM."""
