from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.fakes.triton.server import FakeTriton
from tests.samples.lora_adapters import write_converted
from tests.waiting import wait_until
from trtllm_serve_cli.client.ask import generate
from trtllm_serve_cli.client.batch import parse_batch, run_batch
from trtllm_serve_cli.client.generate import Completion, GenerateRequest
from trtllm_serve_cli.client.lora import load_adapter
from trtllm_serve_cli.client.transport.cancellation import Cancellation
from trtllm_serve_cli.errors import RequestFailed, TllmError

DEFAULTS = GenerateRequest("", max_tokens=9)


def test_text_file_has_one_prompt_per_line() -> None:
    requests = list(parse_batch(["a ", "", "{b\r"], DEFAULTS, lambda prompt: f"<{prompt}>"))
    assert requests == [GenerateRequest("<a >", 9), GenerateRequest("<{b>", 9)]


def test_jsonl_lines_override_the_defaults() -> None:
    lines = [
        '{"prompt": "a", "max_tokens": 3, "stop_words": ["x"]}',
        '{"text_input": "b", "bad_words": "y", "max_tokens": null}',
    ]
    assert list(parse_batch(lines, DEFAULTS)) == [
        GenerateRequest("a", 3, stop_words=("x",)),
        GenerateRequest("b", 9, bad_words=("y",)),
    ]


def test_jsonl_line_with_beams_is_not_streamed() -> None:
    (request,) = parse_batch(['{"prompt": "a", "beam_width": 2}'], DEFAULTS)
    assert request == GenerateRequest("a", 9, beam_width=2, stream=False)


def test_jsonl_line_with_draft_tokens_is_not_streamed() -> None:
    (request,) = parse_batch(['{"prompt": "a", "num_draft_tokens": 5}'], DEFAULTS)
    assert request == GenerateRequest("a", 9, num_draft_tokens=5, stream=False)


def test_jsonl_line_accepts_a_guide_and_an_adapter(tmp_path: Path) -> None:
    write_converted(tmp_path)
    line = {
        "prompt": "a",
        "guided_decoding_guide_type": "json_schema",
        "guided_decoding_guide": {"type": "object"},
        "lora_task_id": 3,
        "lora_dir": str(tmp_path),
        "stop_after_ms": 100,
    }
    (request,) = parse_batch([json.dumps(line)], DEFAULTS)
    assert isinstance(request, GenerateRequest)
    assert request.guided_decoding_guide == '{"type": "object"}'
    assert (request.lora_task_id, request.stop_after_ms) == (3, 100)
    assert (request.lora_weights, request.lora_config) == load_adapter(tmp_path)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"prompt": "a"', "Line 2: the line is not valid JSON."),
        ("[1]", "Line 2: the line is not a JSON object."),
        ("{}", "Line 2: the line does not contain a prompt."),
        ('{"prompt": null}', "Line 2: the line does not contain a prompt."),
        ('{"prompt": ""}', "Line 2: the line does not contain a prompt."),
        ('{"prompt": "a", "text_input": "b"}', "Line 2: the line contains two prompts."),
        ('{"prompt": "a", "nope": 1}', "Line 2: the request contains unknown fields: nope."),
        ('{"prompt": "a", "max_tokens": 1.5}', "Line 2: max_tokens cannot be 1.5."),
        ('{"prompt": 5}', "Line 2: text_input cannot be 5."),
        ('{"prompt": "a", "stop_words": 5}', "Line 2: stop_words cannot be 5."),
        ('{"prompt": "a", "lora_name": 5}', "Line 2: lora_name cannot be 5."),
        ('{"prompt": "a", "lora_dir": 5}', "Line 2: lora_dir cannot be 5."),
        (
            '{"prompt": "a", "lora_weights": []}',
            "Line 2: the request contains unknown fields: lora_weights.",
        ),
    ],
)
def test_invalid_line_is_an_error_at_its_position(line: str, what: str) -> None:
    first, bad, last = parse_batch(['{"prompt": "a"}', line, '{"prompt": "c"}'], DEFAULTS)
    assert isinstance(first, GenerateRequest) and isinstance(last, GenerateRequest)
    assert isinstance(bad, TllmError)
    assert bad.what == what


def test_deeply_nested_first_line_is_an_error() -> None:
    bad, last = parse_batch(['{"prompt": ' + "[" * 100_000, '{"prompt": "c"}'], DEFAULTS)
    assert isinstance(bad, TllmError) and isinstance(last, GenerateRequest)
    assert bad.what == "Line 1: the line is not valid JSON."


def test_results_keep_the_order_of_requests() -> None:
    gate = threading.Event()

    def fake_generate(request: GenerateRequest, cancellation: Cancellation) -> Completion:
        if request.text_input == "0":
            assert gate.wait(60)  # the first request finishes last
        if request.text_input == "2":
            gate.set()
        return Completion((request.text_input,), 0.0)

    answers = run_batch(fake_generate, [GenerateRequest(str(i)) for i in range(6)], num_in_flight=3)
    assert [a.text for a in answers if isinstance(a, Completion)] == list("012345")


def test_limits_requests_in_flight() -> None:
    drawn = 0

    def requests() -> Iterator[GenerateRequest]:
        nonlocal drawn
        for i in range(100):
            drawn += 1
            yield GenerateRequest(str(i))

    with closing(run_batch(lambda r, s: Completion((), 0.0), requests(), 4)) as answers:
        next(answers)
        assert drawn == 5


def test_failure_affects_only_its_request() -> None:
    failed = RequestFailed("no")

    def fake_generate(request: GenerateRequest, cancellation: Cancellation) -> Completion:
        if request.text_input == "bad":
            raise failed
        return Completion(("fine",), 0.0)

    requests = [GenerateRequest("bad"), GenerateRequest("good"), failed]
    assert list(run_batch(fake_generate, requests)) == [failed, Completion(("fine",), 0.0), failed]


def test_raises_unexpected_exceptions() -> None:
    def fake_generate(request: GenerateRequest, cancellation: Cancellation) -> Completion:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(run_batch(fake_generate, [GenerateRequest("a")]))


def test_closing_early_cancels_requests_in_flight(triton: FakeTriton) -> None:
    requests = [GenerateRequest("go"), GenerateRequest("forever")]
    with closing(
        run_batch(lambda r, c: generate(triton.endpoint, "m", r, cancellation=c), requests, 2)
    ) as answers:
        next(answers)
        wait_until(lambda: "forever" in [each["text_input"] for each in triton.received])
    assert triton.cancelled.wait(60)
