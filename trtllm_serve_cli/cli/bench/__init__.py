"""`tllm bench` and its commands."""
