"""Read checkpoint files in the GGUF, safetensors, JSON and sentence-transformers formats."""
