"""Run Schemathesis with OpenAI's published specification against a gateway.

The hooks below select the model and check the errors. `reduce_openapi.py` keeps the paths that the
gateway serves.
"""

from __future__ import annotations

import os
from typing import Any

import schemathesis

MODEL = os.environ.get("TLLM_MODEL", "demo")


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Select the served model, so that valid requests reach the engine."""
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        return {**body, "model": MODEL}
    return body


@schemathesis.check
def error_format(context: Any, response: Any, case: Any) -> None:
    """Require OpenAI's four fields in each error, and JSON as the content type."""
    if response.status_code < 400:
        return
    assert response.headers["content-type"] == ["application/json"], response.headers
    error = response.json()
    assert error.keys() == {"error"}, error
    assert error["error"].keys() == {"message", "type", "param", "code"}, error
    assert isinstance(error["error"]["message"], str), error
    assert error["error"]["message"], error
