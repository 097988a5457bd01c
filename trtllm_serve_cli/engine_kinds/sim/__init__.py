"""A simulated engine: a timing and a tokenizer."""
