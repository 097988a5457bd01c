"""Define the exit codes that the commands set.

`tllm` also exits with 0 for success, with 1 if tllm itself has a bug, and with 2 if Typer rejects
the command line.
"""

USER_CAN_FIX = 3
INTERRUPTED = 130
# The exit code that shells report for a program that was killed by SIGPIPE.
PIPE_CLOSED = 141
