"""OpenVINO GenAI, which runs on any CPU, from a Hugging Face checkpoint or a GGUF file."""
