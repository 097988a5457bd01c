"""Serve and benchmark Hugging Face checkpoints on Triton Inference Server."""

__version__ = "0.1.0"
