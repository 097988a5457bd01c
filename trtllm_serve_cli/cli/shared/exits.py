"""Define the exit codes that the commands set.

`tllm` also exits with 0 for success, with 1 for a bug in tllm, and with 2 for wrong usage, which
Typer reports.
"""

USER_CAN_FIX = 3
INTERRUPTED = 130
