"""Drive a headless Chromium over the DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on the PATH: apt-get install chromium"
)
_TIMEOUT_S = 60.0


class Page:
    """A page of a browser. `problems` are the errors and warnings on its console."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: Any) -> None:
        self._loop = loop
        self._socket = socket
        self._ids = itertools.count(1)
        self.problems: list[str] = []

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol, and return its result."""
        call = self._call(method, params)
        return self._loop.run_until_complete(asyncio.wait_for(call, _TIMEOUT_S))

    async def _call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            message = await self._socket.receive_json()
            if is_problem(message):
                self.problems.append(str(message["params"]))
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression, after its promise if it is one."""
        result = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        self.evaluate(
            "new Promise((done) => { const check = () => "
            f"({condition}) ? done() : requestAnimationFrame(check); check(); }})"
        )

    def open(self, url: str, *, width: int = 1000, height: int = 800) -> None:
        """Open `url` in a window of this size, in CSS pixels."""
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.send("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def screenshot(self, file: Path) -> None:
        data = self.send("Page.captureScreenshot", format="png")["data"]
        file.write_bytes(base64.b64decode(data))


def is_problem(message: dict[str, Any]) -> bool:
    """Return whether an event reports an exception, an error or a warning of the browser."""
    if message.get("method") == "Log.entryAdded":
        return message["params"]["entry"]["level"] in ("error", "warning")
    return message.get("method") == "Runtime.exceptionThrown"


@contextmanager
def open_page(folder: Path) -> Iterator[Page]:
    """Start a browser with its profile in `folder`, and yield its page."""
    assert CHROMIUM is not None
    command = (
        *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *("--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"),
    )
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as browser:
        assert browser.stderr is not None
        try:
            address = next(
                line.split()[-1] for line in browser.stderr if "DevTools listening on" in line
            )
            port = address.removeprefix("ws://").partition("/")[0]
            loop = asyncio.new_event_loop()
            session, socket = loop.run_until_complete(_connect(port))
            yield Page(loop, socket)
            loop.run_until_complete(socket.close())
            loop.run_until_complete(session.close())
            loop.close()
        finally:
            browser.terminate()
            browser.stderr.read()


async def _connect(address: str) -> tuple[Any, Any]:
    session = aiohttp.ClientSession()
    async with session.get(f"http://{address}/json/list") as response:
        pages = [each for each in await response.json() if each["type"] == "page"]
    url = pages[0]["webSocketDebuggerUrl"]
    return session, await session.ws_connect(url, max_msg_size=0)
