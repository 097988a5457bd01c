"""OpenVINO GenAI, which runs Hugging Face checkpoints and GGUF files on any CPU."""
