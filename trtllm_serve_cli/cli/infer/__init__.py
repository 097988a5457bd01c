"""`tllm infer`: send a prompt or a batch of prompts, or hold a conversation."""
