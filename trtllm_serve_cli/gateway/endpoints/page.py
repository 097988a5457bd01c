"""Handle `GET /`, which returns the chat page."""

from __future__ import annotations

import base64
import functools
import hashlib
import re

from starlette.requests import Request
from starlette.responses import Response

from trtllm_serve_cli.rendering import read_template


async def show_chat_page(request: Request) -> Response:
    """Return the chat page. The page sends requests only to this gateway."""
    page, policy = _load_page()
    return Response(
        page,
        media_type="text/html",
        headers={
            "content-security-policy": policy,
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
        },
    )


@functools.cache
def _load_page() -> tuple[str, str]:
    """Return the page and its content security policy.

    The policy allows only the page's own script and style, `data:` images, and requests to this
    gateway.
    """
    page = read_template("gateway/chat.html")
    hashes = {
        tag: " ".join(map(_hash, re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)))
        for tag in ("script", "style")
    }
    policy = {
        "default-src": "'none'",
        "script-src": hashes["script"],
        "style-src": hashes["style"],
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return page, "; ".join(f"{name} {value}" for name, value in policy.items())


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
