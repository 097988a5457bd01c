"""Read LoRA adapters, check them and prepare them for the engines."""
