"""A simulated engine, which consists of a timing and a tokenizer."""
