"""Fetch a running server's metrics page, or read a saved page."""

from __future__ import annotations

from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener

from trtllm_serve_cli.errors import BadInput, NoServer, RequestFailed
from trtllm_serve_cli.metrics.parse import Snapshot, parse_metrics


def fetch_metrics(address: str, timeout_s: float = 5.0) -> str:
    """Return the text of the metrics page at `address`, which has the format `host:port`.

    Raise `NoServer` if the server cannot be reached or does not respond within `timeout_s` seconds.
    Raise `RequestFailed` if the server returns an HTTP error or an invalid response.
    """
    # Ignore HTTP_PROXY, because a proxy may be unable to reach servers on the local network.
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(f"http://{address}/metrics", timeout=timeout_s) as response:
            page: bytes = response.read()
        return page.decode()
    except HTTPError as error:
        error.close()
        raise _no_page(
            address, f"the request for /metrics returned HTTP status {error.code}"
        ) from error
    except (HTTPException, UnicodeDecodeError) as error:
        raise _no_page(
            address, "the response is truncated, not UTF-8 text, or not valid HTTP"
        ) from error
    except (URLError, OSError) as error:
        raise NoServer(
            f"No server publishes metrics at {address}.",
            why=_describe(getattr(error, "reason", None) or error),
            next_step="run `tllm status` to list the running servers, and check that the server "
            "publishes metrics on this port (Triton's default is 8002)",
        ) from error


def read_saved_metrics(path: Path) -> Snapshot:
    """Parse a saved metrics page, with the file's modification time as the scrape time.

    Raise `BadInput` if the file cannot be read, is not a metrics page, or contains no metrics.
    """
    try:
        snapshot = parse_metrics(path.read_text(encoding="utf-8"), path.stat().st_mtime)
    except (OSError, UnicodeDecodeError, RequestFailed) as error:
        why = error.why if isinstance(error, RequestFailed) else _describe(error)
        raise _bad_file(path, why) from error
    if not snapshot.samples:
        raise _bad_file(path, "the file contains no metrics")
    return snapshot


def _bad_file(path: Path, why: str) -> BadInput:
    return BadInput(
        f"{path} could not be read as a metrics page.",
        why=why,
        next_step="save a metrics page with `tllm metrics --raw > metrics.txt`, then pass "
        "metrics.txt",
    )


def _describe(error: object) -> str:
    return getattr(error, "strerror", None) or str(error)


def _no_page(address: str, why: str) -> RequestFailed:
    return RequestFailed(
        f"The response from {address} is not a metrics page.",
        why=why,
        next_step="pass the address of Triton's metrics port (8002 by default)",
    )
