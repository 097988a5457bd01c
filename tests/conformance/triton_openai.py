"""Run the tests of Triton's OpenAI-compatible frontend against a gateway.

The tests start a server in the process of pytest, or as a subprocess. This plugin for pytest
replaces both by the gateway, and does not change the tests.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import httpx2
import openai

GATEWAY = os.environ.get("TLLM_GATEWAY", "http://127.0.0.1:9000")


class GatewayClient(httpx2.Client):
    """Sends requests to the gateway instead of an application in this process."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(base_url=GATEWAY, timeout=60)


class GatewayServer:
    """Replaces the class that starts Triton's frontend as a subprocess."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.url_root = GATEWAY

    def __enter__(self) -> GatewayServer:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def stop(self) -> None:
        pass

    def url_for(self, *parts: str) -> str:
        return "/".join((GATEWAY, *parts))

    def get_client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{GATEWAY}/v1", api_key="any", timeout=60)

    def get_async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{GATEWAY}/v1", api_key="any", timeout=60)


def _add_module(name: str, **members: Any) -> None:
    sys.modules[name] = module = ModuleType(name)
    vars(module).update(members)


_add_module("tritonserver", __spec__=None, Server=GatewayServer)
_add_module("fastapi")
_add_module("fastapi.testclient", TestClient=GatewayClient)
_add_module(
    "tests.utils",
    OpenAIServer=GatewayServer,
    setup_server=GatewayServer,
    setup_fastapi_app=GatewayServer,
)
