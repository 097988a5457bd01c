"""What a server or the way to it did wrong, as our errors."""

from __future__ import annotations

from trtllm_serve_cli.errors import NoServer, RequestFailed, TimedOut

# Triton answers UNAVAILABLE too; only these phrases distinguish it from an unreachable address.
_FROM_TRITON = ("restricted", "unknown model", "in-flight", "not ready", "exceeds maximum queue")
_QUEUE_FULL = ("exceeds maximum queue size", "max queue", "queue is full")
_IS_IT_RUNNING = (
    "`tllm status` shows what is running and on which ports, `tllm start` starts a server"
)


def is_from_triton(message: str) -> bool:
    """Return whether the message of an UNAVAILABLE status was written by Triton."""
    return any(phrase in message.lower() for phrase in _FROM_TRITON)


def is_rejection(message: str) -> bool:
    """Return whether Triton rejected the request because its queue is full."""
    return any(phrase in message.lower() for phrase in _QUEUE_FULL)


def no_server(address: str, why: str) -> NoServer:
    """Nobody answers at `address`."""
    return NoServer(f"No server answers at {address}.", why=why, next_step=_IS_IT_RUNNING)


def connection_lost(address: str, why: str) -> RequestFailed:
    """The connection broke in the middle of an answer."""
    return RequestFailed(
        f"The connection to {address} broke before the answer was whole.",
        why=why,
        next_step="`tllm status` shows whether the server still runs, `tllm logs` what it said",
    )


def timed_out(model: str, timeout_s: float | None) -> TimedOut:
    """The answer was not whole in time; the request has been cancelled."""
    within = f" within {timeout_s:g} s" if timeout_s is not None else " in time"
    return TimedOut(
        f"{model} did not finish{within}.",
        why="the time limit passed, and the request was cancelled",
        next_step="allow more time (--timeout), or ask for less (--max-tokens)",
    )


def cancelled() -> RequestFailed:
    """The request was ended from here, by another thread."""
    return RequestFailed(
        "The request was cancelled.",
        why="its caller wanted no more of it",
        next_step="ask again when you want the answer",
    )


def refused(model: str, message: str) -> RequestFailed:
    """The server's own words about a request to `model`."""
    if "unknown model" in message.lower():
        return RequestFailed(
            f"The server has no model {model!r}.",
            why=message,
            next_step="`tllm status` shows the models of the running server; name one with -m",
        )
    return RequestFailed(
        f"{model} did not answer the request.",
        why=message or "the server gave no reason",
        next_step="put right what the server names; `tllm logs` shows more of it",
    )


def invalid_response(address: str, why: str) -> RequestFailed:
    """What answers at `address` does not speak as Triton does."""
    return RequestFailed(
        f"The answer from {address} makes no sense.",
        why=why,
        next_step="check that the address is Triton's, and the right one of its ports",
    )
