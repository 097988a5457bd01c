"""Define the base URL and the API key of an OpenAI-compatible server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from trtllm_serve_cli.client.address import check_host
from trtllm_serve_cli.errors import BadInput

# The API that serves a request: chat completions, which take messages, or completions, which take a
# prompt.
Api = Literal["chat", "completions"]
_PATHS: dict[Api, str] = {"chat": "/chat/completions", "completions": "/completions"}
_DEFAULT_PORTS = {"http": 80, "https": 443}
_DEFAULT_PATH = "/v1"


@dataclass(frozen=True, slots=True)
class BaseUrl:
    """The base URL of an OpenAI-compatible API, such as http://127.0.0.1:8000/v1."""

    scheme: str
    host: str
    port: int
    path: str = _DEFAULT_PATH

    @property
    def is_tls(self) -> bool:
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """The host, followed by the port unless the port is the default of the scheme."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def path_of(self, api: Api) -> str:
        """Return the path of the endpoint for `api`."""
        return self.path + _PATHS[api]

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


@dataclass(frozen=True, slots=True)
class OpenAIEndpoint:
    """The base URL and the API key of a server.

    `api_key` is None if requests are sent without a key.
    """

    url: BaseUrl
    api_key: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """The HTTP headers for each request."""
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream, */*"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return headers


def parse_base_url(text: str) -> BaseUrl:
    """Parse a base URL.

    The default scheme is http, and the default path is `/v1`. The port is optional if the URL
    contains a scheme. Raise `BadInput` if `text` is not the URL of a server.
    """
    refusal = BadInput(
        f"{text!r} is not the URL of an OpenAI-compatible server.",
        why="the URL must have the form http://HOST:PORT, https://HOST/v1 or HOST:PORT",
        next_step="pass a valid URL, for example -u http://127.0.0.1:8000",
    )
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
        check_host(host or "")
    except ValueError as error:
        raise refusal from error
    is_complete = "://" in text or port is not None
    has_extra = parts.query or parts.fragment or parts.username is not None
    if not host or parts.scheme not in _DEFAULT_PORTS or not is_complete or has_extra:
        raise refusal
    if not is_header_value(f"{host}{parts.path}") or port == 0:
        raise refusal
    path = parts.path.rstrip("/") or _DEFAULT_PATH
    return BaseUrl(parts.scheme, host, port or _DEFAULT_PORTS[parts.scheme], path)


def parse_api_key(text: str | None) -> str | None:
    """Return the key without surrounding white space, or None if there is no key.

    Raise `BadInput` if the key cannot be part of an HTTP header. The error does not contain the
    key.
    """
    key = (text or "").strip()
    if not is_header_value(key):
        raise BadInput(
            "The API key contains characters that are not allowed in an HTTP header.",
            why="a key can contain only printable ASCII characters except spaces",
            next_step="correct --api-key or the OPENAI_API_KEY environment variable",
        )
    return key or None


def is_header_value(text: str) -> bool:
    """Return whether `text` contains only printable ASCII characters except spaces."""
    return all("!" <= character <= "~" for character in text)
