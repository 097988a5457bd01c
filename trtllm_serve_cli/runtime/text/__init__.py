"""Text to token ids and back: the tokenizer, its users, and lossless streaming of text."""
