"""Define the exit codes that the commands set.

Other exit codes are 0 for success, 1 for a bug in tllm, and 2 for wrong usage, which Typer reports.
"""

USER_CAN_FIX = 3
INTERRUPTED = 130
