"""A simulated engine, which has a timing and a tokenizer but no weights."""
