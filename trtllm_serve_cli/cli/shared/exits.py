"""Exit codes that tllm sets itself.

In addition, 0 is success, 1 is a bug in tllm, and 2 is wrong usage, which Typer reports.
"""

USER_CAN_FIX = 3
INTERRUPTED = 130
