"""Check this machine for `tllm doctor`: collect facts, then diagnose problems."""
