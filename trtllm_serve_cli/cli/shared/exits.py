"""The exit codes; besides these, 0 is done, 1 a bug of ours, 2 wrong usage (Typer's)."""

USER_CAN_FIX = 3
INTERRUPTED = 130
