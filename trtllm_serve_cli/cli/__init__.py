"""Commands of `tllm`.

Each module parses the options of its commands, calls one stage and prints the result.
"""
