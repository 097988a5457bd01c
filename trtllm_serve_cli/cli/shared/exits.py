"""Define the exit codes of `tllm`.

Python sets 0 and 1, Typer sets 2, and `processes.exit_on_signals` sets 128 plus the signal number.
"""

USER_CAN_FIX = 3
INTERRUPTED = 130
# The exit code that shells report for a program killed by SIGPIPE.
PIPE_CLOSED = 141

MEANINGS = {
    0: "Success.",
    1: "A bug in `tllm`. Please report it with the traceback.",
    2: "A usage error, such as an unknown option, a missing argument or a value out of range.",
    USER_CAN_FIX: "An error that you can fix. The message describes what happened, why, and what "
    "to do next.",
    129: "SIGHUP ended the command after its cleanup, for example because the terminal was closed.",
    INTERRUPTED: "Interrupted with Ctrl-C.",
    PIPE_CLOSED: "The reader of the output closed the pipe, for example in `tllm list | head -1`.",
    143: "SIGTERM ended the command after its cleanup. For example, `tllm start` "
    "stops the server that it was starting.",
}
