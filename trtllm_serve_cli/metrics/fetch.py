"""Fetch the metrics page of a running server, or read a saved one."""

from __future__ import annotations

import shlex
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener

from trtllm_serve_cli.errors import BadInput, NoServer, RequestFailed
from trtllm_serve_cli.metrics.parse import Snapshot, parse_metrics


def fetch_metrics(address: str, timeout_s: float = 5.0) -> str:
    """Return the text of the metrics page at `address` (`host:port` of the metrics service).

    Raise `NoServer` if the server does not respond in time, or `RequestFailed` if the response is
    an HTTP error, is truncated or is not text.
    """
    # Ignore HTTP_PROXY: the server is on the local network, which a proxy may not reach.
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(f"http://{address}/metrics", timeout=timeout_s) as response:
            page: bytes = response.read()
        return page.decode()
    except HTTPError as error:
        error.close()
        raise _no_page(address, f"it responds with HTTP {error.code} to /metrics") from error
    except (HTTPException, UnicodeDecodeError) as error:
        raise _no_page(address, "the response is truncated, or is not text over HTTP") from error
    except (URLError, OSError) as error:
        raise NoServer(
            f"No server publishes metrics at {address}.",
            why=str(getattr(error, "reason", None) or error),
            next_step="run `tllm status` to see the running servers; Triton's metrics port is 8002 "
            "unless it was started with another port or without metrics",
        ) from error


def read_saved_metrics(path: Path) -> Snapshot:
    """Parse a saved page, taken at the file's modification time.

    Raise `BadInput` if the file cannot be read or is not a metrics page.
    """
    try:
        return parse_metrics(path.read_text(encoding="utf-8"), path.stat().st_mtime)
    except (OSError, UnicodeDecodeError, RequestFailed) as error:
        why = error.why if isinstance(error, RequestFailed) else str(error)
        raise BadInput(
            f"{path} is not a saved metrics page.",
            why=why,
            next_step=f"save one: tllm metrics --raw > {shlex.quote(str(path))}",
        ) from error


def _no_page(address: str, why: str) -> RequestFailed:
    return RequestFailed(
        f"The response of {address} is not a metrics page.",
        why=why,
        next_step="check the address: Triton's metrics port is 8002 unless it was started with "
        "another port; its HTTP and gRPC ports do not publish metrics",
    )
