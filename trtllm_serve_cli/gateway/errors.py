"""Define the gateway's errors, in the formats of OpenAI's and Anthropic's APIs.

Sources of the formats and error codes: https://platform.openai.com/docs/guides/error-codes, and
`anthropic/types/shared/error_type.py` in version 2.12 of the Python package `anthropic`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from trtllm_serve_cli.client.transport.error_mapping import is_rejection

# Maps HTTP status codes to error types. For other statuses, the type is `invalid_request_error`
# below 500, and `server_error` otherwise.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
# Maps HTTP status codes to Anthropic's error types. For other statuses, the type is
# `invalid_request_error` below 500, and `api_error` otherwise.
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
# Both APIs use the path /v1/models. Only Anthropic clients send this header.
_ANTHROPIC_HEADER = b"anthropic-version"
# Substrings of messages that indicate a transient error. TensorRT-LLM returns the last one if
# running requests use all adapters in its cache.
_TEMPORARY = ("retry the request", "is being unloaded", "There are no done tasks to evict")
# The start of a message about a field that the engine does not support. Text after a colon may be
# about the content of a field.
_UNSUPPORTED = re.compile(r"[^:;]*(?:not supported|does not support)")
# Retry-After value, in seconds, for requests that the gateway or the engine cannot currently
# accept.
RETRY_AFTER_S = 1


class ApiError(Exception):
    """An error response with an HTTP status.

    - `param`: the request field that caused the error.
    - `code`: a machine-readable error code.
    - `retry_after_s`: the Retry-After header in seconds, or None to omit the header.
    - `headers`: additional response headers.
    - `reason`: the limit that the request exceeded, for metrics and the access log, or "".
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
        reason: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s
        self.reason = reason
        self._headers = dict(headers or {})

    def rename(self, params: Mapping[str, str]) -> None:
        """Rename the field that caused the error in `param`.

        If the message starts with the field's name, also rename the field in the message.
        `params` maps the field names of chat completions to the field names of another API. Fields
        that are not in `params` keep their names.
        """
        if (name := params.get(self.param or "")) is None:
            return
        if self.message.startswith(f"{self.param} "):
            self.message = name + self.message.removeprefix(str(self.param))
        self.param = name

    @property
    def type(self) -> str:
        """The error type, which depends only on the status."""
        default = "invalid_request_error" if self.status < 500 else "server_error"
        return _TYPES.get(self.status, default)

    def body(self, scope: Mapping[str, Any] | None = None) -> bytes:
        """Return the response body in the format of the API that the request uses.

        `scope` is the request's ASGI scope. If it is None, use the format of OpenAI's API.
        """
        if scope is not None and is_anthropic(scope):
            return self.anthropic_body()
        return msgspec.json.encode(
            {
                "error": {
                    "message": self.message,
                    "type": self.type,
                    "param": self.param,
                    "code": self.code,
                }
            }
        )

    def anthropic_body(self) -> bytes:
        """Return the response body in the format of Anthropic's API."""
        default = "invalid_request_error" if self.status < 500 else "api_error"
        kind = _ANTHROPIC_TYPES.get(self.status, default)
        return msgspec.json.encode(
            {"type": "error", "error": {"type": kind, "message": self.message}}
        )

    def headers(self) -> dict[str, str]:
        """Return the additional response headers, including Retry-After if it is set."""
        if self.retry_after_s is None:
            return self._headers
        return {**self._headers, "retry-after": str(self.retry_after_s)}


def is_anthropic(scope: Mapping[str, Any]) -> bool:
    """Return whether a request uses Anthropic's API."""
    path = f"{scope['path']}/"
    return path.startswith("/v1/messages/") or (
        path.startswith("/v1/models/")
        and any(name == _ANTHROPIC_HEADER for name, _ in scope["headers"])
    )


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error (400) for an invalid request."""
    return ApiError(400, message, param=param, code=code)


def too_deep() -> ApiError:
    """Return the error (400) for a request body whose JSON is nested too deeply."""
    return invalid("The JSON in the request body is nested too deeply. Reduce the nesting depth.")


def model_not_found(name: str, known: tuple[str, ...]) -> ApiError:
    """Return the error (404) for an unknown model. The message lists the names in `known`."""
    available = ", ".join(known) or "none"
    return ApiError(
        404,
        f"The model '{name}' does not exist. Available models: {available}.",
        param="model",
        code="model_not_found",
    )


def unavailable(message: str) -> ApiError:
    """Return the error (503) for a temporary failure, with a Retry-After header."""
    return ApiError(503, message, code="service_unavailable", retry_after_s=RETRY_AFTER_S)


def engine_error(
    message: str, *, is_rejected: bool, params: Mapping[str, str] | None = None
) -> ApiError:
    """Return the error for a request that the engine rejected or could not complete.

    `message` is the engine's error message. `is_rejected` is true if the request, rather than the
    engine, caused the error. `params` maps the engine's names of inputs to the request fields that
    set them. In the message of a rejected request, these fields replace the inputs. The first field
    is the `param` of the error.
    """
    if is_rejection(message):
        return ApiError(429, message, code="queue_full", retry_after_s=RETRY_AFTER_S)
    if any(part in message for part in _TEMPORARY):
        return unavailable(message)
    if is_rejected:
        message, param = _name_params(message, params or {})
        if "max_seq_len" in message:
            return invalid(message, param, "context_length_exceeded")
        is_unsupported = param is not None and _UNSUPPORTED.match(message)
        return invalid(message, param, "unsupported_parameter" if is_unsupported else None)
    return ApiError(500, message)


def _name_params(message: str, params: Mapping[str, str]) -> tuple[str, str | None]:
    """Replace the engine's names of inputs in `message` with the request fields in `params`.

    Also return the first field, or None if the message contains no input. Remove an alias in
    parentheses after an input, for example in "request_output_len (max_tokens)". Ignore names in
    quotation marks, paths and `NAME=VALUE`.
    """
    names = "|".join(map(re.escape, sorted(params, key=len, reverse=True)))
    pattern = rf"(?<![\w./\"'`=-])({names})(?![\w=])(?: \([a-z_]+\))?"
    first = re.search(pattern, message) if names else None
    if first is None:
        return message, None
    named = re.sub(pattern, lambda found: f"`{params[found[1]]}`", message)
    return f"{named.removesuffix('.')}.", params[first[1]]
