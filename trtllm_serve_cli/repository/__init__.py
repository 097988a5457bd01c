"""Render, read, change and validate Triton model repositories.

`plan_repository` plans a repository from an `Engine` and `ServingOptions`. `write_repository` then
writes the repository to a directory, either completely or not at all. Triton serves the directory
with `--disable-auto-complete-config`. The directory contains everything that Triton needs except
the engine's files.
"""
