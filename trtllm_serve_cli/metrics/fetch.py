"""The metrics page of a running server."""

from __future__ import annotations

import shlex
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener

from trtllm_serve_cli.errors import BadInput, NoServer, RequestFailed
from trtllm_serve_cli.metrics.parse import Snapshot, parse_metrics


def fetch_metrics(address: str, timeout_s: float = 5.0) -> str:
    """The page at `address` (`host:port` of the metrics service), in Prometheus' text format.

    Raises `NoServer` when nobody answers in time, `RequestFailed` when the answer is no such page
    or ends before its declared length.
    """
    # A proxy from the environment has no business between us and a server on our own network.
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(f"http://{address}/metrics", timeout=timeout_s) as response:
            page: bytes = response.read()
        return page.decode()
    except HTTPError as error:
        error.close()
        raise _no_page(address, f"it answers HTTP {error.code} to /metrics") from error
    except (HTTPException, UnicodeDecodeError) as error:
        raise _no_page(address, "the answer is cut, or is not text over HTTP") from error
    except (URLError, OSError) as error:
        raise NoServer(
            f"No server publishes metrics at {address}.",
            why=str(getattr(error, "reason", None) or error),
            next_step="`tllm status` shows what is running; Triton's metrics port is 8002, unless "
            "it was started with another or with metrics off",
        ) from error


def read_saved_metrics(path: Path) -> Snapshot:
    """A page that was saved, as of when its file was last written; raises `BadInput`."""
    try:
        return parse_metrics(path.read_text(encoding="utf-8"), path.stat().st_mtime)
    except (OSError, UnicodeDecodeError, RequestFailed) as error:
        why = error.why if isinstance(error, RequestFailed) else str(error)
        raise BadInput(
            f"{path} is no saved metrics page.",
            why=why,
            next_step=f"save one: tllm metrics --raw > {shlex.quote(str(path))}",
        ) from error


def _no_page(address: str, why: str) -> RequestFailed:
    return RequestFailed(
        f"What {address} sent is no metrics page.",
        why=why,
        next_step="check the address: Triton's metrics port is 8002 unless it was started with "
        "another; its HTTP and gRPC ports have no metrics",
    )
