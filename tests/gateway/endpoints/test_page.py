from __future__ import annotations

import base64
import hashlib
import re

from tests.gateway.fakes import FakeBackend, make_client


def test_page_allows_only_its_own_script_and_style() -> None:
    with make_client(FakeBackend()) as client:
        response = client.get("/")
    policy = response.headers["content-security-policy"]
    assert response.headers["content-type"].startswith("text/html")
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", response.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    # A style attribute or an event handler would need an exception in the policy.
    assert not re.search(r"<[^>]* (style|on\w+)=", response.text)
    assert "http://" not in response.text
    assert "https://" not in response.text
