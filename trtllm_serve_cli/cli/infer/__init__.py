"""Commands of `tllm infer`: prompts, batches and conversations."""
