"""Implement the `tllm` commands.

The command modules parse options, call the code that does the work, and print the results.
"""
