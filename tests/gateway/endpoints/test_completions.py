from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.fakes import FakeBackend, generates, make_client, read_events
from trtllm_serve_cli.client.model_info import ModelInfo

PATH = "/v1/completions"


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "demo", "prompt": "Hi", **fields}


def test_whole_response_has_sixteen_tokens_by_default() -> None:
    with make_client(FakeBackend(generates("a" * 20))) as client:
        answer = client.post(PATH, json=body()).json()
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": "a" * 16, "logprobs": None, "finish_reason": "length"}
    ]
    assert answer["usage"]["total_tokens"] == 18


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Hi", ["Hi"]),
        (["Hi", "Yo"], ["Hi", "Yo"]),
        ([72, 105], ["Hi"]),
        ([[72], [105]], ["H", "i"]),
        ("", ["\0"]),
        (None, ["\0"]),
    ],
)
def test_prompts_are_texts_or_token_ids(prompt: Any, prompts: list[str]) -> None:
    backend = FakeBackend()
    with make_client(backend) as client:
        answer = client.post(PATH, json=body(prompt=prompt, n=2)).json()
    sent = ["".join(map(chr, fields["input_ids"])) for fields in backend.submitted]
    assert sent == prompts
    assert [each["index"] for each in answer["choices"]] == list(range(2 * len(prompts)))


@pytest.mark.parametrize(
    ("fields", "is_valid"),
    [
        ({"prompt": ["a"] * 2048}, True),
        ({"prompt": ["a"] * 2049}, False),
        ({"prompt": [[97]] * 1025, "n": 2}, False),
        ({"prompt": ["a"] * 513, "n": 1, "best_of": 4}, False),
        # These are the tokens of one prompt.
        ({"prompt": [97] * 100, "n": 64}, True),
    ],
    ids=["most prompts", "prompts", "n", "best_of", "token ids"],
)
def test_number_of_sequences_is_limited(fields: dict[str, Any], is_valid: bool) -> None:
    backend = FakeBackend(generates("b"))
    with make_client(backend) as client:
        response = client.post(PATH, json=body(max_tokens=1, **fields))
    if is_valid:
        assert response.status_code == 200
    else:
        assert (response.status_code, backend.submitted) == (400, [])
        assert "the maximum is 2048" in response.json()["error"]["message"]
        assert response.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [97, 0x110000]}, "prompt"),
        ({"prompt": [[97], [0x110000]]}, "prompt"),
        ({"prompt": "a", "stop_token_ids": [0x110000]}, "stop_token_ids"),
    ],
    ids=["prompt", "prompts", "stop"],
)
@pytest.mark.parametrize("vocab_size", [None, 0x110000], ids=["tokenizer", "model"])
def test_token_ids_outside_the_vocabulary_are_rejected(
    fields: dict[str, Any], param: str, vocab_size: int | None
) -> None:
    backend = FakeBackend()
    info = ModelInfo("demo", max_seq_len=200, engine_kind="sim", vocab_size=vocab_size)
    with make_client(backend, info=info) as client:
        response = client.post(PATH, json=body(**fields))
    assert (response.status_code, backend.submitted) == (400, [])
    error = response.json()["error"]
    assert (error["param"], error["message"]) == (
        param,
        f"The token id 1114112 in `{param}` is outside the vocabulary. Send token ids from 0 to "
        "1114111.",
    )


def test_prompts_of_different_types_are_rejected() -> None:
    with make_client(FakeBackend()) as client:
        for prompt in (["a", 1], [1, "a"], [1, [2]], ["a", [2]]):
            error = client.post(PATH, json=body(prompt=prompt)).json()["error"]
            assert error["param"] == "prompt"
            assert error["message"].startswith("The items of `prompt` have different types")


def test_prompt_that_is_too_long_is_named() -> None:
    with make_client(FakeBackend()) as client:
        error = client.post(PATH, json=body(prompt="a" * 201)).json()["error"]
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")


def test_echo_returns_the_prompt() -> None:
    with make_client(FakeBackend(generates("b"))) as client:
        answer = client.post(PATH, json=body(prompt=["x", "y"], echo=True)).json()
        stream = client.post(PATH, json=body(echo=True, stream=True)).text
    assert [each["text"] for each in answer["choices"]] == ["xb", "yb"]
    *events, end = read_events(stream)
    texts = [json.loads(event)["choices"][0]["text"] for event in events]
    assert (texts, end) == (["Hi", "b", ""], "[DONE]")


def test_log_probabilities_have_offsets() -> None:
    with make_client(FakeBackend(generates("ab"))) as client:
        answer = client.post(PATH, json=body(logprobs=0)).json()
    assert answer["choices"][0]["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": None,
        "text_offset": [0, 1],
    }


def test_alternatives_are_maps_with_the_generated_token() -> None:
    with make_client(FakeBackend(generates("ac")), engine_kind="vllm") as client:
        answer = client.post(PATH, json=body(logprobs=2)).json()
    assert answer["choices"][0]["logprobs"]["top_logprobs"] == [
        {"a": -0.5, "b": -1.5},
        {"c": -0.5, "d": -1.5},
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_logprobs_scores_the_prompt(stream: bool) -> None:
    """The request is that of lm-eval's `local-completions` for the likelihood of a text."""
    backend = FakeBackend(generates("x"))
    request = body(prompt=[[72, 105], [66]], max_tokens=1, temperature=0, echo=True, logprobs=1)
    with make_client(backend) as client:
        response = client.post(PATH, json={**request, "stream": stream})
    if stream:
        *events, _ = read_events(response.text)
        choices = [each for event in events for each in json.loads(event)["choices"]]
    else:
        choices = response.json()["choices"]
    joined: dict[int, dict[str, Any]] = {}
    for choice in choices:
        known = joined.setdefault(choice["index"], {"text": ""})
        known["text"] += choice["text"]
        for key, values in (choice["logprobs"] or {}).items():
            known[key] = known.get(key, []) + (values or [None] * len(choice["text"]))
    assert joined == {
        0: {
            "text": "Hix",
            "tokens": ["H", "i", "x"],
            "token_logprobs": [None, -0.5, -0.5],
            "top_logprobs": [None, {"i": -0.5}, {"x": -0.5}],
            "text_offset": [0, 1, 2],
        },
        1: {
            "text": "Bx",
            "tokens": ["B", "x"],
            "token_logprobs": [None, -0.5],
            "top_logprobs": [None, {"x": -0.5}],
            "text_offset": [0, 1],
        },
    }
    assert backend.submitted[0]["return_prompt_log_probs"]


@pytest.mark.parametrize("stream", [False, True])
def test_without_tokens_only_the_prompt_is_returned(stream: bool) -> None:
    backend = FakeBackend(generates("xyz"))
    request = body(max_tokens=0, echo=True, temperature=1.5, stream=stream)
    with make_client(backend) as client:
        response = client.post(PATH, json={**request, **({} if stream else {"logprobs": 0})})
    sent = backend.submitted[0]
    assert (sent["max_new_tokens"], sent["top_k"], "temperature" in sent) == (1, 1, False)
    if stream:
        *events, _ = read_events(response.text)
        choices = [json.loads(event)["choices"][0] for event in events]
        assert [each["text"] for each in choices] == ["Hi", ""]
        assert choices[-1]["finish_reason"] == "length"
        return
    answer = response.json()
    assert answer["choices"] == [
        {
            "index": 0,
            "text": "Hi",
            "logprobs": {
                "tokens": ["H", "i"],
                "token_logprobs": [None, -0.5],
                "top_logprobs": None,
                "text_offset": [0, 1],
            },
            "finish_reason": "length",
        }
    ]
    assert answer["usage"]["completion_tokens"] == 0


def test_best_of_generates_more_than_it_returns() -> None:
    backend = FakeBackend()
    with make_client(backend) as client:
        answer = client.post(PATH, json=body(n=1, best_of=3)).json()
    assert [each["index"] for each in answer["choices"]] == [0]
    assert answer["choices"][0]["logprobs"] is None
    assert backend.submitted[0]["num_return_sequences"] == 3


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"logprobs": 6}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"suffix": "x"}, "suffix"),
        ({"logprobs": 1}, "logprobs"),
        ({"echo": True, "logprobs": 1, "n": 2, "stream": True}, "stream"),
    ],
)
def test_errors(changes: dict[str, Any], param: str) -> None:
    with make_client(FakeBackend()) as client:
        response = client.post(PATH, json=body(**changes))
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
