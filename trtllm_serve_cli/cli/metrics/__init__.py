"""`tllm metrics`: show a server's metrics once or live, or export a monitoring configuration."""
