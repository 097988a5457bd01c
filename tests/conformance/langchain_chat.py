"""Run LangChain's standard tests of chat models against a gateway.

The tests are `ChatModelIntegrationTests` of the package langchain-tests. The classes below only
select the client, the address, the model and a limit of tokens. A small model fails tests that
depend on what it writes.
"""

from __future__ import annotations

import os
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

GATEWAY = os.environ.get("TLLM_GATEWAY", "http://127.0.0.1:9000")
MODEL = os.environ.get("TLLM_MODEL", "demo")
# A small model often does not end its response.
MAX_TOKENS = 150


class TestChatCompletions(ChatModelIntegrationTests):
    """`/v1/chat/completions`, with OpenAI's client."""

    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        options = {"max_tokens": MAX_TOKENS, "temperature": 0, "timeout": 120, "stream_usage": True}
        return {"base_url": f"{GATEWAY}/v1", "api_key": "any", "model": MODEL, **options}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return False


class TestResponses(TestChatCompletions):
    """`/v1/responses`, with OpenAI's client."""

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "use_responses_api": True}


class TestMessages(ChatModelIntegrationTests):
    """`/v1/messages`, with Anthropic's client."""

    @property
    def chat_model_class(self) -> type[ChatAnthropic]:
        return ChatAnthropic

    @property
    def chat_model_params(self) -> dict[str, Any]:
        options = {"max_tokens": MAX_TOKENS, "temperature": 0, "timeout": 120}
        return {"base_url": GATEWAY, "api_key": "any", "model": MODEL, **options}
