"""Parse tool calls in generated text, in the formats of the model families."""
