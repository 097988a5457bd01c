"""Read the files of checkpoints: GGUF, safetensors, JSON and those of sentence-transformers."""
