"""Check whether a gateway that runs in another process is healthy."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl

from trtllm_serve_cli.gateway.config import GatewayConfig

_TIMEOUT_S = 5.0


def find_gateway_problem(config: GatewayConfig, timeout_s: float = _TIMEOUT_S) -> str:
    """Return why the gateway is not healthy, or "" if it is healthy."""
    address = config.url.partition("://")[2]
    if config.tls_certificate is None:
        connection = http.client.HTTPConnection(address, timeout=timeout_s)
    else:
        # Skip certificate verification: the certificate is usually for the gateway's public name,
        # but this request uses a local address.
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(address, timeout=timeout_s, context=context)
    try:
        with contextlib.closing(connection):
            connection.request("GET", "/health")
            response = connection.getresponse()
            if response.status == 200:
                return ""
            status, body = response.status, response.read()
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"the gateway does not respond ({type(error).__name__})"
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return f"its health check has the status {status}"
