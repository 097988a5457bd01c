"""Build and serve simulated engines, which have a timing and a tokenizer but no weights."""
