"""Convert between text and token ids, and decode token streams without losing text."""
