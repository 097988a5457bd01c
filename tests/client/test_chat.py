from __future__ import annotations

from datetime import datetime

import pytest

from trtllm_serve_cli.client.chat import render_chat
from trtllm_serve_cli.errors import BadInput

CHATML = """
{%- for message in messages %}
    {%- if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
HI = [{"role": "user", "content": "Hi <b>&\n"}]


def test_chatml_ends_with_the_assistant_header() -> None:
    assert render_chat(CHATML, HI) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n"
        "<|im_start|>user\nHi <b>&\n<|im_end|>\n<|im_start|>assistant\n"
    )


def test_system_message_is_first() -> None:
    prompt = render_chat(CHATML, [{"role": "system", "content": "Be brief."}, *HI])
    assert prompt.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user")


@pytest.mark.parametrize(
    ("adds_bos", "prompt"), [(True, "<s>[INST] x"), (False, "<s><s>[INST] x")], ids=["adds", "not"]
)
def test_does_not_repeat_the_bos_of_the_tokenizer(adds_bos: bool, prompt: str) -> None:
    template = "{{ bos_token }}{{ bos_token }}[INST] {{ messages[0]['content'] }}"
    rendered = render_chat(
        template, [{"role": "user", "content": "x"}], bos_token="<s>", adds_bos=adds_bos
    )
    assert rendered == prompt


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("  {% if true %}\na\n  {% endif %}\nb", "a\nb"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ {'é': '<'} | tojson }}", '{"é": "<"}'),
        ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
        ("{{ strftime_now('%d %b %Y') }}", "21 Nov 2026"),
        ("{% generation %}x{% endgeneration %}y", "xy"),
        ("{% if tools %}t{% endif %}{{ eos_token }}", "</s>"),
    ],
    ids=["trim", "break", "tojson", "indent", "now", "generation", "tools"],
)
def test_templates_have_the_environment_of_transformers(template: str, text: str) -> None:
    now = datetime(2026, 11, 21)
    assert render_chat(template, [], eos_token="</s>", now=lambda: now) == text


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% if %}", "TemplateSyntaxError"),
        ("{{ raise_exception('System role not supported') }}", "System role not supported"),
        ("{{ messages[0].content.split(1, 2, 3) }}", "TypeError"),
        ("{{ missing.thing }}", "UndefinedError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ 'x' | truncate(1) }}", "AssertionError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    ],
)
def test_template_error_suggests_raw(template: str, why: str) -> None:
    with pytest.raises(BadInput, match="chat template cannot") as raised:
        render_chat(template, HI)
    assert why in raised.value.why
    assert "--raw" in raised.value.next_step


def test_variables_tools_and_documents_reach_the_template() -> None:
    template = "{{ tools | tojson }}{{ documents[0].text }}{{ enable_thinking }}"
    prompt = render_chat(
        template,
        HI,
        tools=[{"a": 1}],
        documents=[{"text": "d"}],
        variables={"enable_thinking": False},
    )
    assert prompt == '[{"a": 1}]dFalse'


def test_no_generation_prompt() -> None:
    assert render_chat(CHATML, HI, adds_generation_prompt=False).endswith("<|im_end|>\n")


@pytest.mark.parametrize(
    ("content", "template", "end"),
    [
        ("It is ", CHATML, "assistant\nIt is "),
        ("It is ", CHATML.replace("['content']", "['content'] | trim"), "assistant\nIt is"),
    ],
    ids=["exact", "trimmed"],
)
def test_final_message_is_continued(content: str, template: str, end: str) -> None:
    messages = [*HI, {"role": "assistant", "content": content}]
    prompt = render_chat(
        template, messages, adds_generation_prompt=False, continues_final_message=True
    )
    assert prompt.endswith(end)
    assert messages[-1]["content"] == content


def test_final_message_that_is_not_rendered_cannot_be_continued() -> None:
    with pytest.raises(BadInput) as raised:
        render_chat("{{ messages[0].content }}", [*HI, *HI], continues_final_message=True)
    assert "omits the final message" in raised.value.why
