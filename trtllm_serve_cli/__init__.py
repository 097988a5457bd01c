"""From a Hugging Face checkpoint to a running, measured Triton Inference Server."""

__version__ = "0.1.0"
