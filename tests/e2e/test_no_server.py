"""`tllm infer --no-server` with the real engine."""

from __future__ import annotations

import json

from tests.e2e.conftest import Tllm
from trtllm_serve_cli.client.ask import generate
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import GenerateRequest

PROMPT = "The capital of France is"


def test_answer_equals_that_of_a_server(served: Tllm, endpoint: Endpoint) -> None:
    words = ("infer", "--no-server", "-m", "demo", PROMPT, "--raw", "--max-tokens", "12", "--json")
    local = json.loads(served.done(*words))
    request = GenerateRequest(PROMPT, max_tokens=12)
    remote = generate(endpoint, "demo", request)
    assert (local["text_output"], local["num_input_tokens"], local["num_output_tokens"]) == (
        remote.text,
        remote.num_input_tokens,
        remote.num_output_tokens,
    )
    assert local["finish_reason"] == "length"


def test_token_ids_equal_those_of_a_server(served: Tllm) -> None:
    words = ("infer", "-m", "demo", PROMPT, "--max-tokens", "12", "--show-tokens", "--json")
    local, remote = (json.loads(served.done(*words, *more)) for more in (("--no-server",), ()))
    assert (len(local["input_ids"]), len(local["output_ids"][0])) == (
        local["num_input_tokens"],
        12,
    )
    for name in ("text_output", "input_ids", "output_ids"):
        assert local[name] == remote[name]


def test_rejected_request_is_an_error(imported: Tllm) -> None:
    result = imported("infer", "--no-server", "hello", "--beam-width", "99")
    assert result.returncode == 3
    assert "Error: The request to demo failed." in result.stderr
    assert "Traceback" not in result.stderr
