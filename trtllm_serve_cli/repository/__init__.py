"""Render Triton model repositories, and read, change and validate them.

Takes an `Engine` of the build stage and `ServingOptions`; writes a directory that Triton serves
with `--disable-auto-complete-config`. The directory is self-contained except for the engine's
files, and it is written completely or not at all.
"""
