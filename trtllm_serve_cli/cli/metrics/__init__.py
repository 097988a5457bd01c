"""`tllm metrics`: show a server's metrics once, show them live, or export a configuration."""
