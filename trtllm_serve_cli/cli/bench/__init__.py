"""Implement the commands of `tllm bench`."""
