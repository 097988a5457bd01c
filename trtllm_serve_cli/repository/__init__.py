"""Render Triton model repositories, and read, change and validate them.

A repository is planned from an `Engine` and `ServingOptions`. It is written as a directory that
Triton serves with `--disable-auto-complete-config`. The directory contains everything except the
engine's files, and it is written completely or not at all.
"""
