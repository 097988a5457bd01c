"""Token ids that `tllm infer --show-tokens` prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.cli.running import Tllm
from tests.fakes.triton.server import FakeTriton
from trtllm_serve_cli.cli.infer.infer_options import InferOptions
from trtllm_serve_cli.cli.infer.token_ids import check_usage, show_ids
from trtllm_serve_cli.client.generate import Completion


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tllm:
    return Tllm(monkeypatch, capsys)


@pytest.mark.parametrize(
    ("options", "request_values", "has_prompt", "message"),
    [
        ({"interface": "http"}, {}, True, "requires gRPC"),
        ({"batch": Path("prompts.txt")}, {}, False, "requires a single prompt"),
        ({}, {}, False, "requires a single prompt"),
        ({"context_logits": Path("c.npy")}, {}, True, "cannot be used with --context-logits"),
        ({}, {"lora_name": "a"}, True, "--show-tokens cannot be used with --lora"),
        ({}, {"stop_after_ms": 5}, True, "--show-tokens cannot be used with --stop-after-ms"),
        ({}, {"num_draft_tokens": 5}, True, "--show-tokens cannot be used with --num-draft-tokens"),
    ],
)
def test_unsupported_options_are_usage_errors(
    options: dict[str, Any], request_values: dict[str, Any], has_prompt: bool, message: str
) -> None:
    chosen = InferOptions(show_tokens=True, **options)
    with pytest.raises(typer.BadParameter, match=message):
        check_usage(chosen, request_values, has_prompt=has_prompt)


def test_ids_go_to_stderr(triton: FakeTriton, run: Tllm) -> None:
    words = ("infer", "go", "--show-tokens", "--max-tokens", "2", "-u", triton.endpoint.grpc)
    code, out, err = run(*words)
    assert (code, out) == (0, "\0\0\n")
    assert err.splitlines()[:2] == ["Input ids: 103 111", "Output ids: 0 0"]


def test_ids_are_in_the_json(triton: FakeTriton, run: Tllm) -> None:
    words = ("infer", "go", "--show-tokens", "--max-tokens", "2", "-u", triton.endpoint.grpc)
    answer = json.loads(run(*words, "--json")[1])
    assert (answer["input_ids"], answer["output_ids"]) == ([103, 111], [[0, 0]])


def test_server_without_the_models_is_refused(triton: FakeTriton, run: Tllm) -> None:
    triton.unloaded.add("preprocessing")
    code, out, err = run("infer", "go", "--show-tokens", "-u", triton.endpoint.grpc)
    assert (code, out) == (3, "")
    assert "The server cannot return token ids." in err


def test_ids_of_several_sequences_are_numbered(capsys: pytest.CaptureFixture[str]) -> None:
    show_ids(Completion(("a", "b"), 1.0, input_ids=(1,), output_ids=((2, 3), ())))
    assert capsys.readouterr().err == "Input ids: 1\nOutput ids [0]: 2 3\nOutput ids [1]: \n"
