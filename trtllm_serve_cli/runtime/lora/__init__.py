"""LoRA adapters: their files, how a request names one, and an engine that serves several."""
