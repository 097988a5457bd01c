"""LoRA adapters: their files, their use in requests, and an engine that serves several."""
