"""Convert error responses from OpenAI-compatible servers to `TllmError`.

OpenAI's error body is `{"error": {"message", "type", "param", "code"}}`. Other servers use other
formats:

- trtllm-serve (`ErrorResponse` in tensorrt_llm/serve/openai_protocol.py) and older versions of vLLM
  return only the inner object.
- FastAPI returns `{"detail": …}`.
- Triton returns `{"error": "…"}`.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_serve_cli.client.transport.http_exchange import describe_failure
from trtllm_serve_cli.client.transport.openai.endpoint import BaseUrl
from trtllm_serve_cli.errors import NoServer, RequestFailed

_LONGEST_MESSAGE = 500


@dataclass(frozen=True, slots=True)
class ApiFailure:
    """An error response from an OpenAI-compatible server.

    - `status` is the HTTP status of the response, or 0 if the error is in the body of a response
      with status 200.
    - `code` is the server's error code, or an empty string.
    - `param` is the request field that caused the error, or an empty string.
    - `retry_after` is the value of the `Retry-After` header, or an empty string.
    """

    status: int
    message: str
    code: str = ""
    param: str = ""
    retry_after: str = ""

    def names(self, field: str) -> bool:
        """Return whether the server rejected the request because of the request field `field`.

        The status must be 400 or 422, and the error's `param` or message must name the field.
        """
        return self.status in (400, 422) and (field == self.param or field in self.message)


def parse_failure(
    status: int, reason: str, content: bytes, headers: Mapping[str, str] | None = None
) -> ApiFailure:
    """Parse an error response in any of the formats listed in the module docstring.

    For a redirect, the message contains the target. For any other body, it contains the HTTP status
    and the start of the body.
    """
    text = content.decode(errors="replace").strip().removeprefix("data:").strip()
    retry_after = (headers or {}).get("Retry-After") or ""
    if location := (headers or {}).get("Location"):
        return ApiFailure(status, f"HTTP {status} {reason}: {location}")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    details = find_error(body)
    if details is None:
        shown = f"HTTP {status} {reason}: {text[:200]}".rstrip(": ")
        return ApiFailure(status, shown, retry_after=retry_after)
    return ApiFailure(status, *details, retry_after=retry_after)


def find_error(body: Any) -> tuple[str, str, str] | None:
    """Return the message, the error code and the request field in an error response.

    Return None if the body does not describe an error.
    """
    if not isinstance(body, dict):
        return None
    is_bare = body.get("object") == "error" and "message" in body
    error = body if is_bare else body.get("error") or body.get("detail")
    if not error:
        return None
    if not isinstance(error, dict):
        return (error if isinstance(error, str) else json.dumps(error))[:_LONGEST_MESSAGE], "", ""
    message = error.get("message") or json.dumps(error)
    texts = (error.get(name) for name in ("code", "param"))
    code, param = ("" if text is None else str(text) for text in texts)
    return str(message)[:_LONGEST_MESSAGE], code, param


def request_failed(url: BaseUrl, model: str, failure: ApiFailure) -> RequestFailed:
    """Return the error for a request that the server rejected or could not finish."""
    why = failure.message or "the server did not report a reason"
    match failure.status:
        case 401:
            return RequestFailed(
                f"{url} requires a valid API key.",
                why=why,
                next_step="set the OPENAI_API_KEY environment variable, or pass --api-key",
            )
        case 403:
            return RequestFailed(
                f"{url} does not allow the request.",
                why=why,
                next_step="pass an API key that is allowed to use the model, with --api-key or in "
                "the OPENAI_API_KEY environment variable",
            )
        case status if 300 <= status < 400:
            return RequestFailed(
                f"{url} redirects requests.",
                why=why,
                next_step="pass the target URL of the redirect with -u",
            )
        case 404 if _is_about_model(failure):
            return RequestFailed(
                f"The server does not have a model named {model!r}.",
                why=why,
                next_step=f"list the models with `curl {url}/models` and select one with -m",
            )
        case 404 | 405:
            return RequestFailed(
                f"{url} does not provide the requested API.",
                why=why,
                next_step="check the path in -u, which usually ends with /v1, or select the other "
                "API with --api",
            )
        case 429:
            wait = f" in {failure.retry_after} s" if failure.retry_after.isdecimal() else " later"
            return RequestFailed(
                f"{url} is overloaded, or the request exceeds a rate limit.",
                why=why,
                next_step=f"send the request again{wait}",
            )
        case status if status >= 500:
            next_step = "read the server's log, then send the request again"
        case _:
            next_step = "change the option that caused the error, or read the server's log"
    return RequestFailed(f"The request to {model} failed.", why=why, next_step=next_step)


def _is_about_model(failure: ApiFailure) -> bool:
    return failure.code == "model_not_found" or (
        "model" in failure.message.lower() and not failure.message.startswith("HTTP ")
    )


def no_server(url: BaseUrl, error: Exception) -> NoServer:
    """Return the error for a server that cannot be reached."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return NoServer(
            f"The certificate of {url} could not be verified.",
            why=error.verify_message,
            next_step="correct the certificate or, if its CA is private, set the SSL_CERT_FILE "
            "environment variable to the path of the CA certificate",
        )
    return NoServer(
        f"No server responds at {url}.",
        why=describe_failure(error),
        next_step="check that the server is running and that -u contains the server's URL",
    )


def connection_lost(url: BaseUrl, why: str) -> RequestFailed:
    """Return the error for a connection that was lost during a response."""
    return RequestFailed(
        f"The connection to {url} was lost before the response was complete.",
        why=why,
        next_step="read the server's log, then send the request again",
    )


def invalid_response(url: BaseUrl, why: str) -> RequestFailed:
    """Return the error for a response that does not follow the OpenAI API."""
    return RequestFailed(
        f"The response from {url} is invalid.",
        why=why,
        next_step="check that -u is the URL of an OpenAI-compatible server",
    )
