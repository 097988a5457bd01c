from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from trtllm_serve_cli.bench.model.served_model import ServedModel
from trtllm_serve_cli.bench.transport.codec import RequestOptions, Response
from trtllm_serve_cli.bench.transport.openai_codec import OPTIONAL, decode_part, encode_body
from trtllm_serve_cli.bench.workloads.spec import RequestSpec

IDS = RequestSpec(np.array([5, 6], np.int32), 4)
TEXT = RequestSpec.of_text("hi", 4, ignores_eos=True)


def _encode(
    spec: RequestSpec,
    *,
    without: frozenset[str] = frozenset(),
    prompt: str = "prompt",
    **options: Any,
) -> dict[str, Any]:
    model = ServedModel(
        "http://h/v1", "demo", "", "", True, 0, None, "openai", inputs=OPTIONAL - without | {prompt}
    )
    body: dict[str, Any] = json.loads(encode_body(spec, model, RequestOptions(**options)))
    return body


def test_token_ids_are_the_prompt_of_a_completion() -> None:
    assert _encode(IDS) == {
        "model": "demo",
        "prompt": [5, 6],
        "max_tokens": 4,
        "temperature": 0,
        "ignore_eos": True,
        "stream": False,
    }


def test_a_batch_is_a_list_of_prompts() -> None:
    batch = RequestSpec(np.array([[5, 6], [7, 8]], np.int32), 4)
    assert _encode(batch)["prompt"] == [[5, 6], [7, 8]]


def test_text_is_the_message_of_a_chat_completion() -> None:
    body = _encode(TEXT, prompt="messages", stream=True)
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


def test_text_is_the_prompt_of_a_completion() -> None:
    assert _encode(TEXT)["prompt"] == "hi"


@pytest.mark.parametrize(
    "spec",
    [
        RequestSpec.of_text("hi", 4, ignores_eos=False),
        RequestSpec(np.array([5, 6], np.int32), 4, end_id=2),
    ],
    ids=["text", "ids"],
)
def test_responses_end_at_the_end_token_unless_it_is_ignored(spec: RequestSpec) -> None:
    assert not {"ignore_eos", "min_tokens"} & _encode(spec).keys()


def test_rejected_fields_are_replaced() -> None:
    body = _encode(IDS, without=frozenset({"ignore_eos", "max_tokens", "temperature"}))
    assert body == {
        "model": "demo",
        "prompt": [5, 6],
        "max_completion_tokens": 4,
        "min_tokens": 4,
        "stream": False,
    }


def test_token_ids_are_requested_only_if_they_are_needed() -> None:
    assert _encode(IDS, needs_ids=True)["return_token_ids"] is True


def _choice(**fields: Any) -> bytes:
    return json.dumps({"choices": [{"index": 0, **fields}]}).encode()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", Response(0, True)),
        (b"[DONE]", Response(0, False)),
        (_choice(text="a"), Response(1, False, text="a", is_counted=False)),
        (_choice(delta={"content": "a"}), Response(1, False, text="a", is_counted=False)),
        (_choice(delta={"reasoning": "a"}), Response(1, False, text="a", is_counted=False)),
        (_choice(delta={"role": "assistant"}), Response(0, False, text="")),
        (
            _choice(text="ab", token_ids=[1, 2]),
            Response(2, False, text="ab", ids=np.array([1, 2], np.int32).tobytes()),
        ),
        (
            b'{"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}}',
            Response(0, False, text="", num_input_tokens=4, total_tokens=3),
        ),
        (b'{"error": {"message": "no"}}', Response(0, True, "no")),
        (b"{", Response(0, True, "the response is not valid: b'{'")),
        (b"[]", Response(0, True, "the response is not valid: b'[]'")),
        (
            b'{"choices": [1]}',
            Response(0, True, "the response is not valid: b'{\"choices\": [1]}'"),
        ),
    ],
    ids=lambda value: value.decode() if isinstance(value, bytes) else "",
)
def test_decodes_parts(data: bytes, expected: Response) -> None:
    assert decode_part(data) == expected
