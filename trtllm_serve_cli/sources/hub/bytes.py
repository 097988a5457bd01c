"""Read a large file from the hub, starting at any offset.

If the hub stores the file in Xet (the hub's chunk storage) and hf_xet is installed, hf_xet reads
the bytes over many connections in parallel. Otherwise, the bytes are read with an HTTP range
request.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from trtllm_serve_cli import __version__
from trtllm_serve_cli.sources.hub.errors import BrokenDownload, explain_web_page
from trtllm_serve_cli.sources.hub_address import HubAddress

_CHUNK_BYTES = 1 << 20
# Limits on retries and timeouts. By default, hf_xet silently retries an unreachable server for
# almost four minutes.
_XET_CONFIG = {
    "client.retry_max_attempts": 1,
    "client.retry_base_delay": "500ms",
    "client.connect_timeout": "10s",
    "client.read_timeout": "30s",
}

# A function that opens a file at an offset. It yields the actual offset and the bytes from that
# offset. The actual offset is 0 if the server ignores the requested range.
OpenAt = Callable[[int], AbstractContextManager[tuple[int, Iterable[bytes]]]]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file on the hub.

    `etag` is the blob name in the cache. `openers` contains functions that open the file. Callers
    try these functions in order.
    """

    etag: str | None
    openers: tuple[OpenAt, ...]


class XetGroup:
    """Connections to Xet that are opened on first use and shared by all files."""

    def __init__(self) -> None:
        self._group: Any = None
        self._lock = threading.Lock()

    def open(self, xet: Any, headers: Mapping[str, str]) -> Any:
        """Return hf_xet's download stream group, created on the first call.

        `xet` is the `xet_file_data` of a file's metadata.
        """
        import hf_xet

        # Do not send the hub's token to Xet. Instead, hf_xet sends a short-lived token that it
        # requests from the hub.
        open_headers = {k: v for k, v in headers.items() if k.lower() != "authorization"}
        with self._lock:
            if self._group is None:
                config = hf_xet.XetConfig().with_config(_XET_CONFIG)
                self._group = hf_xet.XetSession(config).new_download_stream_group(
                    token_refresh_url=xet.refresh_route,
                    token_refresh_headers=dict(headers),
                    custom_headers=open_headers,
                )
            return self._group


def find_remote_file(
    source: HubAddress, name: str, *, endpoint: str | None, timeout_s: float, xet: XetGroup
) -> RemoteFile:
    """Query the hub for a file's metadata and return a `RemoteFile`."""
    from huggingface_hub import HfApi, hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    url = hf_hub_url(source.repository, name, revision=source.revision, endpoint=endpoint)
    found = HfApi(endpoint=endpoint).get_hf_file_metadata(url=url, timeout=timeout_s)
    headers = build_hf_headers(library_name="tllm", library_version=__version__)
    http = _open_over_http(url, headers, timeout_s)
    if found.xet_file_data is None or not has_xet_streams():
        return RemoteFile(found.etag, (http,))
    return RemoteFile(
        found.etag, (_open_over_xet(xet, found.xet_file_data, found.size, headers), http)
    )


def has_xet_streams() -> bool:
    """Return whether hf_xet is installed and enabled, and can read from an offset."""
    from huggingface_hub.constants import HF_HUB_DISABLE_XET

    if HF_HUB_DISABLE_XET:
        return False
    try:
        import hf_xet
    except ImportError:
        return False
    return hasattr(hf_xet, "XetDownloadStreamGroup") and hasattr(hf_xet, "XetConfig")


def _open_over_xet(
    group: XetGroup, xet: Any, size: int | None, headers: Mapping[str, str]
) -> OpenAt:
    @contextmanager
    def open_at(start: int) -> Iterator[tuple[int, Iterable[bytes]]]:
        import hf_xet

        info = hf_xet.XetFileInfo(xet.file_hash, size)
        with _xet_errors():
            stream = group.open(xet, headers).download_stream(info, start=start)
        try:
            yield start, _read_xet(stream)
        finally:
            stream.cancel()

    return open_at


def _read_xet(stream: Iterable[bytes]) -> Iterator[bytes]:
    with _xet_errors():
        yield from stream


@contextmanager
def _xet_errors() -> Iterator[None]:
    """Raise hf_xet's errors as `BrokenDownload`.

    Otherwise, `translate_hub_errors` could report an `OSError` from hf_xet as a disk error.
    """
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        raise BrokenDownload(
            "The download from Xet, the hub's storage, was interrupted.",
            why=str(error),
            next_step="set HF_HUB_DISABLE_XET=1 to download without Xet",
        ) from error


def _open_over_http(url: str, headers: Mapping[str, str], timeout_s: float) -> OpenAt:
    @contextmanager
    def open_at(start: int) -> Iterator[tuple[int, Iterable[bytes]]]:
        from huggingface_hub import get_session

        session = get_session()
        all_headers = {**headers, "Accept-Encoding": "identity"}
        if start:
            all_headers["Range"] = f"bytes={start}-"
        # Since version 1.0, huggingface_hub returns an httpx client.
        if hasattr(session, "build_request"):
            with session.stream("GET", url, headers=all_headers, timeout=timeout_s) as response:
                # Do not set a chunk size, because large chunks would more than double the CPU time.
                yield _find_start(response), response.iter_raw()
        else:
            with session.get(url, headers=all_headers, timeout=timeout_s, stream=True) as response:
                yield _find_start(response), response.iter_content(_CHUNK_BYTES)

    return open_at


def _find_start(response: Any) -> int:
    from huggingface_hub.utils import hf_raise_for_status

    hf_raise_for_status(response)
    if "text/html" in response.headers.get("Content-Type", ""):
        raise explain_web_page(str(response.url))
    found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(found[1]) if response.status_code == 206 and found else 0
