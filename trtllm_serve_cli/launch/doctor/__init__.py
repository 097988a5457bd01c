"""Collect facts about this machine and diagnose problems for `tllm doctor`."""
