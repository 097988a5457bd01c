"""`tllm infer` and `tllm run`: send prompts to a model, or hold a conversation."""
