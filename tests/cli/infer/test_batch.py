"""Prompts of a file that `tllm infer --batch --batch-inputs` sends in one request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.cli.running import Tllm
from tests.fakes.triton.answers import Outputs, Request
from tests.fakes.triton.server import FakeTriton
from trtllm_serve_cli.cli.infer.batch import check_usage
from trtllm_serve_cli.cli.infer.infer_options import InferOptions


def follow_rows(request: Request) -> Iterator[Outputs]:
    """Answer the last row first."""
    for index, prompt in reversed([*enumerate(request.inputs["text_input"])]):
        yield {"text_output": [prompt.upper()], "batch_index": [index]}


@pytest.fixture
def triton() -> Iterator[FakeTriton]:
    with FakeTriton(answer=follow_rows) as fake:
        yield fake


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tllm:
    return Tllm(monkeypatch, capsys)


def _write(folder: Path, *lines: str) -> str:
    file = folder / "prompts.txt"
    file.write_text("\n".join(lines))
    return str(file)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "requires --batch\\. Add --batch FILE"),
        ({"batch": Path("p.txt"), "interface": "http"}, "requires gRPC"),
        ({"batch": Path("p.txt"), "no_server": True}, "requires a server"),
    ],
)
def test_unsupported_options_are_usage_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(typer.BadParameter, match=message):
        check_usage(InferOptions(batch_inputs=True, **options))


def test_responses_are_printed_by_row(triton: FakeTriton, run: Tllm, tmp_path: Path) -> None:
    file = _write(tmp_path, "one", "", "two")
    words = ("infer", "--batch", file, "--batch-inputs", "--request-id", "r")
    code, out, err = run(*words, "-u", triton.endpoint.grpc)
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, err, len(triton.requests)) == (0, "", 1)
    assert [(each["index"], each["request_id"], each["text_output"]) for each in lines] == [
        (0, "r", "ONE"),
        (1, "r", "TWO"),
    ]


def test_accumulated_text_is_not_streamed(triton: FakeTriton, run: Tllm, tmp_path: Path) -> None:
    triton.parameters = {"accumulate_tokens": "true"}
    words = ("infer", "--batch", _write(tmp_path, "one", "two"), "--batch-inputs")
    assert run(*words, "-u", triton.endpoint.grpc)[0] == 0
    assert triton.received[0]["stream"] == [False, False]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("word",) * 9, "accepts at most 8 prompts per request, but the file has 9"),
        (('{"prompt": "a"}', '{"prompt": "b", "seed": 1}'), "Request 2 in the file"),
        (('{"prompt": "a"}', "{}"), "Line 2: the line does not contain a prompt."),
    ],
)
def test_wrong_files_are_refused_before_a_request(
    triton: FakeTriton, run: Tllm, tmp_path: Path, lines: tuple[str, ...], message: str
) -> None:
    words = ("infer", "--batch", _write(tmp_path, *lines), "--batch-inputs")
    code, out, err = run(*words, "-u", triton.endpoint.grpc)
    assert (code, out, triton.requests) == (3, "", [])
    assert message in " ".join(err.split())


def test_empty_file_prints_nothing(triton: FakeTriton, run: Tllm, tmp_path: Path) -> None:
    words = ("infer", "--batch", _write(tmp_path, ""), "--batch-inputs")
    assert run(*words, "-u", triton.endpoint.grpc) == (0, "", "")
