"""Create the errors for failed requests and classify Triton's error messages."""

from __future__ import annotations

from trtllm_serve_cli.errors import NoServer, RequestFailed, TimedOut

# gRPC reports UNAVAILABLE if the address cannot be reached, but Triton also returns UNAVAILABLE for
# some errors. A message that contains one of these phrases comes from Triton.
_FROM_TRITON = ("restricted", "unknown model", "in-flight", "not ready", "exceeds maximum queue")
_QUEUE_FULL = ("exceeds maximum queue size", "max queue", "queue is full")
SHORTEN_REQUEST = "increase --timeout, or reduce --max-tokens"
CHECK_SERVER = "check the server's state with `tllm status` and its log with `tllm logs`"
_IS_IT_RUNNING = (
    "list the running servers and their ports with `tllm status`, "
    "or start a server with `tllm start`"
)


def is_from_triton(message: str) -> bool:
    """Return whether an UNAVAILABLE status message comes from Triton rather than from gRPC."""
    return any(phrase in message.lower() for phrase in _FROM_TRITON)


def is_rejection(message: str) -> bool:
    """Return whether Triton rejected the request because its queue is full."""
    return any(phrase in message.lower() for phrase in _QUEUE_FULL)


def no_server(address: str, why: str) -> NoServer:
    """Return the error for an address that cannot be reached."""
    return NoServer(f"No server responds at {address}.", why=why, next_step=_IS_IT_RUNNING)


def connection_lost(address: str, why: str) -> RequestFailed:
    """Return the error for a connection that was lost during a response."""
    return RequestFailed(
        f"The connection to {address} was lost before the response was complete.",
        why=why,
        next_step=CHECK_SERVER,
    )


def timed_out(model: str, timeout_s: float | None, next_step: str = SHORTEN_REQUEST) -> TimedOut:
    """Return the error for a request that exceeded its time limit.

    The default `next_step` applies to requests that generate text.
    """
    within = f" within {timeout_s:g} s" if timeout_s is not None else " in time"
    return TimedOut(
        f"{model} did not finish the request{within}.",
        why="the time limit expired before the response was complete",
        next_step=next_step,
    )


def cancelled() -> RequestFailed:
    """Return the error for a request that another thread cancelled."""
    return RequestFailed(
        "The request was cancelled.",
        why="the client cancelled the request before the response was complete",
        next_step="send the request again",
    )


def refused(model: str, message: str) -> RequestFailed:
    """Return the error for a request to `model` that the server rejected or could not finish."""
    if "unknown model" in message.lower():
        return RequestFailed(
            f"The server does not have a model named {model!r}.",
            why=message,
            next_step="list the server's models with `tllm status` and select a model with -m",
        )
    if not message:
        return RequestFailed(
            f"The request to {model} failed.",
            why="the server did not report a reason",
            next_step="read the server's log with `tllm logs`",
        )
    # By default, the server does not log the requests that it rejects (see --log-requests), so do
    # not refer to its log.
    return RequestFailed(
        f"The request to {model} failed.",
        why=message,
        next_step="correct the request or, if the server caused the error, check the server with "
        "`tllm status`",
    )


def invalid_response(address: str, why: str) -> RequestFailed:
    """Return the error for a response that does not follow Triton's protocol."""
    return RequestFailed(
        f"The response from {address} is invalid.",
        why=why,
        next_step=f"check that {address} is the address of a Triton server and that the port "
        "matches the interface",
    )
