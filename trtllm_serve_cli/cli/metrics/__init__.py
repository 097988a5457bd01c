"""Commands of `tllm metrics`: a page, a live dashboard and exports."""
