"""Commands of `tllm`: each module parses its options, calls one stage and prints the result."""
