"""Implement the `tllm` commands.

Each module parses the options of its commands, calls the code that does the work, and prints the
result.
"""
