"""Define the exit codes that the commands set.

The exit code is also 0 for success, 1 for a bug in tllm, and 2 for wrong usage, which Typer
reports.
"""

USER_CAN_FIX = 3
INTERRUPTED = 130
