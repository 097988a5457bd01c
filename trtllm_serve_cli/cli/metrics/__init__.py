"""`tllm metrics`: one page, a live dashboard, and exports."""
