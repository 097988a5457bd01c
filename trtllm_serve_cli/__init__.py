"""Turn a Hugging Face checkpoint into a running and measured Triton Inference Server."""

__version__ = "0.1.0"
