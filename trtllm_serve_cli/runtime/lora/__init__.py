"""Read LoRA adapters and serve several adapters with one engine."""
