"""`tllm infer`: prompts, batches and conversations."""
