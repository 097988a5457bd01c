"""Create the errors for failed requests, and classify Triton's error messages."""

from __future__ import annotations

from trtllm_serve_cli.errors import NoServer, RequestFailed, TimedOut

# gRPC returns UNAVAILABLE if the address cannot be reached, but Triton returns UNAVAILABLE, too.
# A message with one of these phrases is from Triton.
_FROM_TRITON = ("restricted", "unknown model", "in-flight", "not ready", "exceeds maximum queue")
_QUEUE_FULL = ("exceeds maximum queue size", "max queue", "queue is full")
_IS_IT_RUNNING = "`tllm status` lists running servers and their ports, `tllm start` starts a server"


def is_from_triton(message: str) -> bool:
    """Return whether the message of an UNAVAILABLE status is from Triton, not from gRPC."""
    return any(phrase in message.lower() for phrase in _FROM_TRITON)


def is_rejection(message: str) -> bool:
    """Return whether Triton rejected the request because its queue is full."""
    return any(phrase in message.lower() for phrase in _QUEUE_FULL)


def no_server(address: str, why: str) -> NoServer:
    """Return the error for an address that cannot be reached."""
    return NoServer(f"No server answers at {address}.", why=why, next_step=_IS_IT_RUNNING)


def connection_lost(address: str, why: str) -> RequestFailed:
    """Return the error for a connection that was lost during a response."""
    return RequestFailed(
        f"The connection to {address} was lost before the response was complete.",
        why=why,
        next_step="check whether the server still runs: `tllm status`, `tllm logs`",
    )


def timed_out(model: str, timeout_s: float | None) -> TimedOut:
    """Return the error for a request that was cancelled at its time limit."""
    within = f" within {timeout_s:g} s" if timeout_s is not None else " in time"
    return TimedOut(
        f"{model} did not finish{within}.",
        why="the time limit passed, and the request was cancelled",
        next_step="increase --timeout, or reduce --max-tokens",
    )


def cancelled() -> RequestFailed:
    """Return the error for a request that another thread cancelled."""
    return RequestFailed(
        "The request was cancelled.",
        why="the client cancelled it before the response was complete",
        next_step="send it again",
    )


def refused(model: str, message: str) -> RequestFailed:
    """Return the error for a request to `model` that the server rejected or could not finish."""
    if "unknown model" in message.lower():
        return RequestFailed(
            f"The server has no model {model!r}.",
            why=message,
            next_step="`tllm status` lists the models of the running server; select one with -m",
        )
    return RequestFailed(
        f"{model} failed the request.",
        why=message or "the server did not report a reason",
        next_step="fix the reported problem; `tllm logs` shows the server's log",
    )


def invalid_response(address: str, why: str) -> RequestFailed:
    """Return the error for a response that does not follow Triton's protocol."""
    return RequestFailed(
        f"The response from {address} is invalid.",
        why=why,
        next_step="check that the address is Triton's, and that the port matches the interface",
    )
