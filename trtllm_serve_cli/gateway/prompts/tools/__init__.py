"""Parse tool calls in generated text, in the formats of different model families."""
