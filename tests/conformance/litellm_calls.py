"""Call a gateway with LiteLLM, through its providers for OpenAI's and Anthropic's APIs.

LiteLLM translates each API to chat completions and each error to an exception class.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import litellm
import pytest

GATEWAY = os.environ.get("TLLM_GATEWAY", "http://127.0.0.1:9000")
MODEL = os.environ.get("TLLM_MODEL", "demo")
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
PROVIDERS = {
    "openai": {"model": f"openai/{MODEL}", "api_base": f"{GATEWAY}/v1"},
    "anthropic": {"model": f"anthropic/{MODEL}", "api_base": GATEWAY},
    "responses": {"model": f"openai/responses/{MODEL}", "api_base": f"{GATEWAY}/v1"},
}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
NAMED = {"type": "function", "function": {"name": "weather"}}
SCHEMA = {"name": "place", "strict": True, "schema": PARAMETERS}


@pytest.fixture(params=PROVIDERS)
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    common = {"api_key": "any", "max_tokens": 60, "temperature": 0, "timeout": 60}
    return {**PROVIDERS[request.param], **common}


def test_chat(options: dict[str, Any]) -> None:
    response = litellm.completion(messages=QUESTION, **options)
    later = asyncio.run(litellm.acompletion(messages=QUESTION, **options))
    assert response.choices[0].message.content == later.choices[0].message.content
    assert 0 < response.usage.completion_tokens <= 60


def test_stream(options: dict[str, Any]) -> None:
    usage = {"stream_options": {"include_usage": True}}
    chunks = litellm.completion(messages=QUESTION, stream=True, **usage, **options)
    joined = litellm.stream_chunk_builder([*chunks], messages=QUESTION)
    whole = litellm.completion(messages=QUESTION, **options)
    assert joined.choices[0].message.content == whole.choices[0].message.content
    assert joined.usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("is_streaming", [False, True])
def test_tools(options: dict[str, Any], choice: Any, is_streaming: bool) -> None:
    response: Any = litellm.completion(
        messages=QUESTION, tools=[TOOL], tool_choice=choice, stream=is_streaming, **options
    )
    if is_streaming:
        response = litellm.stream_chunk_builder([*response], messages=QUESTION)
    (call,) = response.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments).keys() == {"city"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    history = [*QUESTION, response.choices[0].message.model_dump(), result]
    assert litellm.completion(messages=history, tools=[TOOL], **options).choices


def test_json_schema(options: dict[str, Any]) -> None:
    response_format = {"type": "json_schema", "json_schema": SCHEMA}
    response = litellm.completion(messages=QUESTION, response_format=response_format, **options)
    assert json.loads(response.choices[0].message.content).keys() == {"city"}


def test_errors(options: dict[str, Any]) -> None:
    unknown = options["model"].replace(MODEL, "unknown")
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=QUESTION, **options | {"model": unknown})
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=[{"role": "user", "content": "word " * 9000}], **options)


def test_completions() -> None:
    options = PROVIDERS["openai"] | {"model": f"text-completion-openai/{MODEL}", "api_key": "any"}
    response = litellm.text_completion(prompt=["One, two,", "a b c"], max_tokens=8, **options)
    chunks = litellm.text_completion(prompt="One, two,", max_tokens=8, stream=True, **options)
    assert [each.index for each in response.choices] == [0, 1]
    assert "".join(chunk.choices[0].text or "" for chunk in chunks)


def test_embeddings_are_rejected() -> None:
    with pytest.raises(litellm.BadRequestError, match="does not support the Embeddings API"):
        litellm.embedding(input=["a"], api_key="any", **PROVIDERS["openai"])
