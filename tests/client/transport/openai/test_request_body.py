from __future__ import annotations

from typing import Any

import pytest

from trtllm_serve_cli.client.generate import GenerateRequest, RawTensor
from trtllm_serve_cli.client.transport.openai.failures import ApiFailure
from trtllm_serve_cli.client.transport.openai.request_body import (
    find_rejected,
    plan_body,
    replace_rejected,
)
from trtllm_serve_cli.errors import BadInput

SYSTEM = {"role": "system", "content": "Be brief."}


def _plan(api: Any = "chat", **fields: Any) -> dict[str, Any]:
    return plan_body("demo", api, GenerateRequest("go", **fields))


def test_chat_has_messages() -> None:
    assert _plan(max_tokens=5, history=(SYSTEM,)) == {
        "model": "demo",
        "messages": [SYSTEM, {"role": "user", "content": "go"}],
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_completions_have_a_prompt() -> None:
    assert _plan("completions", stream=False) == {
        "model": "demo",
        "prompt": "go",
        "max_tokens": 200,
        "stream": False,
    }


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 0.5, "top_p": 0.9, "top_k": 3, "seed": 1}, {}),
        ({"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.1}, {}),
        ({"min_tokens": 2}, {}),
        ({"stop_words": ("a", "b"), "bad_words": ("c",)}, {"stop": ["a", "b"], "bad_words": ["c"]}),
        ({"num_return_sequences": 2, "beam_width": 1}, {"n": 2}),
        ({"lora_name": "pirate"}, {"model": "pirate"}),
        ({"guided_decoding_guide_type": "json"}, {"response_format": {"type": "json_object"}}),
        (
            {
                "guided_decoding_guide_type": "json_schema",
                "guided_decoding_guide": '{"type": "object"}',
            },
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "response",
                        "schema": {"type": "object"},
                        "strict": True,
                    },
                }
            },
        ),
        (
            {
                "guided_decoding_guide_type": "structural_tag",
                "guided_decoding_guide": '{"type": "structural_tag", "format": {}}',
            },
            {"response_format": {"type": "structural_tag", "format": {}}},
        ),
    ],
    ids=lambda value: next(iter(value), ""),
)
def test_options_become_fields(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert _plan(**fields) == _plan() | (expected or fields)


@pytest.mark.parametrize(("api", "value"), [("chat", True), ("completions", 1)])
def test_log_probabilities_differ_between_the_apis(api: str, value: object) -> None:
    body = _plan(api, return_log_probs=True)
    assert (body["logprobs"], type(body["logprobs"])) == (value, type(value))


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"beam_width": 2}, "--beam-width"),
        ({"length_penalty": 1.0}, "--length-penalty"),
        ({"num_draft_tokens": 3}, "--num-draft-tokens"),
        ({"lora_task_id": 3}, "--lora-task-id"),
        ({"return_perf_metrics": True}, "--perf"),
        ({"return_context_logits": True}, "--context-logits"),
        ({"lora_weights": RawTensor((1,), b"")}, "--lora-dir"),
        ({"exclude_input_in_output": False}, "exclude_input_in_output"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_without_a_field_are_refused(fields: dict[str, Any], flag: str) -> None:
    with pytest.raises(BadInput, match=f"does not support {flag}") as refused:
        _plan(**fields)
    assert "-i grpc" in refused.value.next_step


@pytest.mark.parametrize("kind", ["regex", "ebnf_grammar"])
def test_guides_without_a_response_format_are_refused(kind: str) -> None:
    with pytest.raises(BadInput, match=f"does not support {kind} guides"):
        _plan(guided_decoding_guide_type=kind, guided_decoding_guide="a")


def test_a_schema_must_be_an_object() -> None:
    with pytest.raises(BadInput, match="not a JSON object"):
        _plan(guided_decoding_guide_type="json_schema", guided_decoding_guide="[]")


def test_invalid_values_are_refused_before_they_are_sent() -> None:
    with pytest.raises(BadInput, match="temperature cannot be"):
        _plan(temperature=float("nan"))


def test_messages_require_chat_completions() -> None:
    with pytest.raises(BadInput, match="A completion request cannot contain messages"):
        _plan("completions", history=(SYSTEM,))


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (ApiFailure(400, "Unsupported parameter: 'max_tokens'."), "max_tokens"),
        (ApiFailure(400, "Unknown", param="stream_options"), "stream_options"),
        (ApiFailure(422, "[{'loc': ('body', 'stream_options')}]"), "stream_options"),
        (ApiFailure(500, "max_tokens"), None),
        (ApiFailure(400, "temperature is too high"), None),
    ],
    ids=str,
)
def test_finds_the_field_that_the_server_rejected(
    failure: ApiFailure, expected: str | None
) -> None:
    assert find_rejected(_plan(), failure) == expected


def test_rejected_fields_are_replaced_or_removed() -> None:
    body = replace_rejected(_plan(max_tokens=5), {"max_tokens", "stream_options"})
    assert body == {
        "model": "demo",
        "messages": [{"role": "user", "content": "go"}],
        "stream": True,
        "max_completion_tokens": 5,
    }
