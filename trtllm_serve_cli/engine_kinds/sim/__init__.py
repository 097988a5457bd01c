"""Build and serve simulated engines, which have timing data and a tokenizer but no weights."""
