"""OpenVINO GenAI: runs on any CPU, from a Hugging Face checkpoint or a GGUF file."""
