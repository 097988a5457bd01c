"""Run the tests of llama.cpp's server against a gateway.

llama.cpp's server has one model and does not require `model` in requests, nor `/v1` in their paths.
This plugin for pytest adds both to each request, and does not change the tests. Many of them check
llama.cpp's own endpoints, or the text of one small model.
"""

from __future__ import annotations

import json
import os
from typing import Any

import httpx2
import requests

PORT = os.environ.get("PORT", "9000")
MODEL = os.environ.get("TLLM_MODEL", "demo")


def pytest_configure() -> None:
    """Change the requests of both clients that the tests use."""
    send, send_openai = requests.Session.send, httpx2.Client.send

    def send_changed(self: Any, request: Any, **options: Any) -> Any:
        request.url = _add_prefix(request.url)
        if isinstance(body := _read(request.body), dict):
            request.prepare_body(None, None, json=body | {"model": MODEL})
        return send(self, request, **options)

    def send_openai_changed(self: Any, request: Any, **options: Any) -> Any:
        url, content, headers = _add_prefix(str(request.url)), request.content, request.headers
        if isinstance(body := _read(content), dict):
            content = json.dumps(body | {"model": MODEL}).encode()
            headers = {key: value for key, value in headers.items() if key != "content-length"}
        changed = httpx2.Request(request.method, url, headers=headers, content=content)
        return send_openai(self, changed, **options)

    requests.Session.send = send_changed  # type: ignore[method-assign]
    httpx2.Client.send = send_openai_changed  # type: ignore[method-assign]


def _add_prefix(url: str) -> str:
    for path in ("/chat/completions", "/completions", "/models", "/responses"):
        url = url.replace(f":{PORT}{path}", f":{PORT}/v1{path}")
    return url


def _read(body: Any) -> Any:
    try:
        return json.loads(body)
    except (TypeError, ValueError):
        return None
