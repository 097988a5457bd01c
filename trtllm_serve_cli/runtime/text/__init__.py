"""Text to token ids and back: the tokenizer, its callers, and text that streams without loss."""
