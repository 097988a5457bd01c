"""Send HTTP requests to Triton servers."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import aiohttp

from trtllm_serve_cli.gateway.errors import ApiError, unavailable

_CONNECT_TIMEOUT_S = 5.0
# After a failed connection attempt, a server is tried last for this many seconds.
_AVOID_S = 5.0
_NO_CONNECTION = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


class TritonHttp:
    """An HTTP client that distributes requests across servers in round-robin order.

    `clock` returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._turns = itertools.count()
        self._failed_at_s: dict[str, float] = {}
        timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT_TIMEOUT_S)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=timeout, auto_decompress=False
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def send(
        self,
        addresses: Sequence[str],
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
    ) -> aiohttp.ClientResponse:
        """Send a request to one of the servers and return the response before reading its body.

        If a server does not accept the connection, try the next one. For GET requests, also try the
        next one if a server responds with an error. If no server responds successfully, return the
        last error response. Raise `ApiError` (503) if no server accepts the connection, or if a
        server accepts it but does not respond.
        """
        response: aiohttp.ClientResponse | None = None
        error: Exception | None = None
        for address in self.order(addresses):
            try:
                received = await self._session.request(
                    method,
                    f"http://{address}{path}",
                    headers=headers,
                    data=body or None,
                    allow_redirects=False,
                )
            except _NO_CONNECTION as failure:
                self._failed_at_s[address] = self._clock()
                error = failure
                continue
            except (aiohttp.ClientError, TimeoutError) as failure:
                if response is not None:
                    response.release()
                raise _no_response(failure) from failure
            if response is not None:
                response.release()
            response = received
            if response.ok or method != "GET":
                break
        if response is None:
            raise _no_response(error) from error
        return response

    async def read(self, response: aiohttp.ClientResponse) -> bytes:
        """Return the body of a response. Raise `ApiError` (503) if it is incomplete."""
        try:
            return await response.read()
        except aiohttp.ClientError as failure:
            raise _no_response(failure) from failure

    async def read_chunks(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """Yield the body of a response as it arrives.

        Raise `ApiError` (503) if the server closes the connection before the end of the body.
        """
        try:
            async for chunk in response.content.iter_any():
                yield chunk
        except aiohttp.ClientError as failure:
            raise _no_response(failure) from failure

    def order(self, addresses: Sequence[str]) -> list[str]:
        """Return the addresses in the order in which to try them for the next request."""
        turn = next(self._turns) % len(addresses)
        now_s = self._clock()
        return sorted(
            (*addresses[turn:], *addresses[:turn]),
            key=lambda each: now_s - self._failed_at_s.get(each, -_AVOID_S) < _AVOID_S,
        )


def _no_response(error: Exception | None) -> ApiError:
    name = type(error).__name__
    return unavailable(f"The request to Triton failed ({name}). Retry the request.")
