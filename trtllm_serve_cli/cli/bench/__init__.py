"""Commands of `tllm bench`."""
