"""`tllm infer`: send a prompt or a batch, or hold a conversation."""
