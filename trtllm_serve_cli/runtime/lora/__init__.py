"""Read LoRA adapters from files and requests, and serve several adapters with one engine."""
