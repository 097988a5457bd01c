"""A stand-in of vLLM 0.26, as far as the engine worker uses it."""
