"""Render, read, change and validate Triton model repositories.

`plan_repository` plans a repository from an `Engine` and `ServingOptions`. `write_repository`
writes the repository to a directory atomically. Triton serves the directory with
`--disable-auto-complete-config`. The directory contains everything that Triton needs except the
engine and the tokenizer.
"""
