"""Build and serve OpenVINO engines from Hugging Face checkpoints or GGUF files, on any CPU."""
