from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.fakes import FakeBackend, generates, make_client, read_events
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.gateway.prompts.chat_template import ChatTemplate

PATH = "/v1/chat/completions"
WEATHER = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}},
    "$defs": {"City": {"type": "string"}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "time"}},
]
QWEN = (
    "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments.city }}{% endfor %}"
    "{{ '\n' }}"
    "{% endfor %}{% if enable_thinking is defined and not enable_thinking %}"
    "<think></think>{% elif opens %}<think>\n{% endif %}"
)
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
NAMED = {"type": "function", "function": {"name": "weather"}}


def body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hi"}]
    return {"model": "demo", "messages": messages, "max_tokens": 150, **fields}


def ask(text: str, template: str = QWEN, **fields: Any) -> tuple[dict[str, Any], FakeBackend]:
    backend = FakeBackend(generates(text))
    info = ModelInfo("demo", max_seq_len=5000, engine_kind="openvino")
    with make_client(backend, info=info, template=ChatTemplate(template)) as client:
        response = client.post(PATH, json=body(**fields))
    assert response.status_code == 200, response.text
    return response.json()["choices"][0], backend


def prompt_of(backend: FakeBackend) -> str:
    return "".join(map(chr, backend.submitted[0]["input_ids"]))


def test_response_has_tool_calls() -> None:
    choice, backend = ask("Let me see. " + CALL, tools=TOOLS)
    (call,) = choice["message"]["tool_calls"]
    assert call["id"].startswith("call_")
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Paris"}'}
    assert choice["message"]["content"] == "Let me see."
    assert choice["finish_reason"] == "tool_calls"
    assert prompt_of(backend) == "weather;time;user: Hi\n"


def test_stream_has_id_and_name_once() -> None:
    with make_client(FakeBackend(generates(CALL)), template=ChatTemplate(QWEN)) as client:
        response = client.post(PATH, json=body(tools=TOOLS, stream=True))
    *events, _ = read_events(response.text)
    choices = [json.loads(event)["choices"][0] for event in events]
    calls = [call for each in choices for call in each["delta"].get("tool_calls", ())]
    assert {each["index"] for each in calls} == {0}
    assert [each["function"]["name"] for each in calls if "id" in each] == ["weather"]
    arguments = "".join(each["function"]["arguments"] for each in calls)
    assert json.loads(arguments) == {"city": "Paris"}
    assert not any(each["delta"].get("content") for each in choices)
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_tool_choice_none_hides_the_tools() -> None:
    choice, backend = ask(CALL, tools=TOOLS, tool_choice="none")
    assert choice["message"]["content"] == CALL
    assert choice["finish_reason"] == "stop"
    assert prompt_of(backend) == "user: Hi\n"


@pytest.mark.parametrize(
    ("choice", "text", "guide"),
    [
        (NAMED, '{"city": "Paris"}', WEATHER),
        (
            "required",
            '[{"name": "weather", "arguments": {"city": "Paris"}}]',
            {
                "type": "array",
                "items": {
                    "anyOf": [
                        {
                            "type": "object",
                            "properties": {
                                "name": {"type": "string", "enum": [name]},
                                "arguments": schema,
                            },
                            "required": ["name", "arguments"],
                            "additionalProperties": False,
                        }
                        for name, schema in (
                            (
                                "weather",
                                {
                                    "type": "object",
                                    "properties": {"city": {"$ref": "#/$defs/weather-City"}},
                                },
                            ),
                            (
                                "time",
                                {
                                    "type": "object",
                                    "properties": {},
                                    "additionalProperties": False,
                                },
                            ),
                        )
                    ]
                },
                "minItems": 1,
                "$defs": {"weather-City": {"type": "string"}},
            },
        ),
    ],
    ids=["named", "required"],
)
def test_forced_call_uses_guided_decoding(choice: Any, text: str, guide: Any) -> None:
    response, backend = ask(text, tools=TOOLS, tool_choice=choice)
    (call,) = response["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Paris"}'}
    assert response["finish_reason"] == "tool_calls"
    (fields,) = backend.submitted
    assert (fields["guide_type"], json.loads(fields["guide"])) == ("json_schema", guide)


def test_required_without_parallel_calls_asks_for_one_call() -> None:
    text = '{"name": "time", "arguments": {}}'
    fields = {"tools": TOOLS[1:], "tool_choice": "required", "parallel_tool_calls": False}
    response, backend = ask(text, **fields)
    assert response["message"]["tool_calls"][0]["function"]["name"] == "time"
    assert json.loads(backend.submitted[0]["guide"])["type"] == "object"


def allow(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_allowed_tools_hide_the_other_tools() -> None:
    _, backend = ask("Hello!", tools=TOOLS, tool_choice=allow("auto", "time"))
    assert prompt_of(backend) == "time;user: Hi\n"
    assert "guide" not in backend.submitted[0]


def test_allowed_tools_can_require_a_call() -> None:
    text = '[{"name": "time", "arguments": {}}]'
    choice, backend = ask(text, tools=TOOLS, tool_choice=allow("required", "time"))
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "time"
    assert json.loads(backend.submitted[0]["guide"])["items"]["properties"]["name"] == {
        "type": "string",
        "enum": ["time"],
    }


def test_allowed_tools_must_exist() -> None:
    with make_client(FakeBackend()) as client:
        response = client.post(PATH, json=body(tools=TOOLS, tool_choice=allow("auto", "tide")))
    assert response.status_code == 400
    assert "the function 'tide', which is not in `tools`" in response.json()["error"]["message"]


def test_history_with_tool_calls_is_rendered() -> None:
    arguments = '{"city": "Paris"}'
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "Sunny"}]},
    ]
    _, backend = ask("Sunny.", messages=messages, tools=TOOLS)
    expected = "weather;time;user: Hi\nassistant: <tool_call>Paris\ntool: Sunny\n"
    assert prompt_of(backend) == expected


def test_template_without_tools_gets_a_description() -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    choice, backend = ask(CALL, template, tools=TOOLS)
    assert prompt_of(backend).startswith("system: You can call these functions.")
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "weather"


@pytest.mark.parametrize(
    ("fields", "prompt", "text"),
    [
        ({}, "user: Hi\n", "<think>Why?</think>So."),
        ({"chat_template_kwargs": {"opens": True}}, "user: Hi\n<think>\n", "Why?</think>So."),
    ],
    ids=["tags", "opened by the template"],
)
def test_reasoning_is_separate(fields: Any, prompt: str, text: str) -> None:
    choice, backend = ask(text, **fields)
    assert choice["message"]["reasoning_content"] == "Why?"
    assert choice["message"]["content"] == "So."
    assert prompt_of(backend) == prompt


@pytest.mark.parametrize(
    "fields",
    [{"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}],
    ids=["enable_thinking", "reasoning_effort"],
)
def test_reasoning_can_be_disabled(fields: Any) -> None:
    choice, backend = ask("So.", **fields)
    assert "reasoning_content" not in choice["message"]
    assert choice["message"]["content"] == "So."
    assert prompt_of(backend) == "user: Hi\n<think></think>"


def test_guided_response_is_content() -> None:
    fields = {"chat_template_kwargs": {"opens": True}, "tools": TOOLS}
    choice, _ = ask('{"a": 1}', **fields, response_format={"type": "json_object"})
    assert choice["message"]["content"] == '{"a": 1}'


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": TOOLS},
            "tool_choice",
        ),
        ({"tool_choice": "sometimes", "tools": TOOLS}, "tool_choice"),
        ({"tools": [*TOOLS, TOOLS[0]]}, "tools"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ],
    ids=["no tools", "empty tools", "unknown", "choice", "duplicate", "continue", "reserved"],
)
def test_invalid_request(fields: Any, param: str) -> None:
    backend = FakeBackend()
    with make_client(backend, template=ChatTemplate(QWEN)) as client:
        response = client.post(PATH, json=body(**fields))
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert backend.submitted == []


def test_template_with_an_unknown_format_requires_a_parser() -> None:
    with make_client(FakeBackend(), template=ChatTemplate("{{ tools }}")) as client:
        response = client.post(PATH, json=body(tools=TOOLS))
    assert response.status_code == 400
    assert "--tool-parser" in response.json()["error"]["message"]


def test_forced_call_requires_guided_decoding() -> None:
    backend = FakeBackend()
    info = ModelInfo("demo", max_seq_len=200, engine_kind="sim")
    with make_client(backend, template=ChatTemplate(QWEN), info=info) as client:
        response = client.post(PATH, json=body(tools=TOOLS, tool_choice="required"))
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "tool_choice")
    assert error["code"] == "unsupported_parameter"


TOOL_USE = "tools: {% for t in tools %}{{ t.function.name }};{% endfor %}[TOOL_CALLS]"


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"tools": TOOLS}, "tools: weather;time;[TOOL_CALLS]"),
        ({"tools": TOOLS, "tool_choice": NAMED}, "tools: weather;time;[TOOL_CALLS]"),
        ({"tools": TOOLS, "tool_choice": "none"}, "user: Hi\n"),
        ({"tools": []}, "user: Hi\n"),
        ({}, "user: Hi\n"),
    ],
    ids=["auto", "named", "none", "empty", "no tools"],
)
def test_requests_with_tools_use_the_template_for_tools(
    fields: dict[str, Any], prompt: str
) -> None:
    template = ChatTemplate(QWEN, tool_source=TOOL_USE)
    backend = FakeBackend(generates("{}"))
    info = ModelInfo("demo", max_seq_len=5000, engine_kind="openvino")
    with make_client(backend, info=info, template=template) as client:
        response = client.post(PATH, json=body(**fields))
        tokens = client.post("/tokenize", json=body(tools=fields.get("tools"))).json()
    assert response.status_code == 200, response.text
    assert prompt_of(backend) == prompt
    has_tools = bool(fields.get("tools"))
    expected = "tools: weather;time;[TOOL_CALLS]" if has_tools else "user: Hi\n"
    assert tokens["count"] == len(expected)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (
            "/v1/messages",
            {"max_tokens": 9, "tools": [{"name": "time", "input_schema": {"type": "object"}}]},
        ),
        ("/v1/responses", {"input": "Hi", "tools": [{"type": "function", "name": "time"}]}),
    ],
)
def test_other_apis_use_the_template_for_tools(path: str, fields: dict[str, Any]) -> None:
    backend = FakeBackend(generates("Hi"))
    with make_client(backend, template=ChatTemplate(QWEN, tool_source=TOOL_USE)) as client:
        messages = {} if "input" in fields else {"messages": body()["messages"]}
        response = client.post(path, json={"model": "demo", **messages, **fields})
    assert response.status_code == 200, response.text
    assert prompt_of(backend) == "tools: time;[TOOL_CALLS]"


def test_calls_are_parsed_in_the_format_of_the_template_for_tools() -> None:
    template = ChatTemplate(QWEN, tool_source=TOOL_USE)
    call = '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris"}}]'
    with make_client(FakeBackend(generates(call)), template=template) as client:
        choice = client.post(PATH, json=body(tools=TOOLS)).json()["choices"][0]
    (parsed,) = choice["message"]["tool_calls"]
    assert parsed["function"] == {"name": "weather", "arguments": '{"city": "Paris"}'}
    assert len(parsed["id"]) == 9


def test_reasoning_tags_are_those_of_the_selected_template() -> None:
    template = ChatTemplate("{{ messages[0].content }}", tool_source=QWEN)
    text = "<think>Why</think>Because"
    for tools, content in ((TOOLS, "Because"), (None, text)):
        with make_client(FakeBackend(generates(text)), template=template) as client:
            choice = client.post(PATH, json=body(tools=tools)).json()["choices"][0]
        assert choice["message"]["content"] == content


def test_template_for_tools_with_an_unknown_format_is_not_used() -> None:
    template = ChatTemplate("{{ messages[0].content }}", tool_source="Action: {{ tools }}")
    backend = FakeBackend(generates(CALL))
    info = ModelInfo("demo", max_seq_len=5000)
    with make_client(backend, info=info, template=template) as client:
        choice = client.post(PATH, json=body(tools=TOOLS)).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert prompt_of(backend).startswith("You can call these functions.")
    named = ChatTemplate("default", tool_parser="hermes", tool_source="Action: {{ tools }}")
    assert named.select(has_tools=True).source == "Action: {{ tools }}"


def test_given_template_replaces_all_templates_of_the_model() -> None:
    info = ModelInfo("demo", chat_template="default", tool_chat_template=TOOL_USE)
    templates = ChatTemplate.of(info), ChatTemplate.of(info, "own")
    selected = [each and each.select(has_tools=True).source for each in templates]
    assert selected == [TOOL_USE, "own"]
