"""Read a checkpoint's files in the formats GGUF, safetensors, JSON and sentence-transformers."""
