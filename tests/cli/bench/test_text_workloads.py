"""Benchmarks of models that accept text, and the check of their answers."""

from __future__ import annotations

import pytest

from tests.cli.bench.running import invoke
from tests.fakes.triton.server import FakeTriton
from trtllm_serve_cli.errors import BadInput, CheckFailed

CORE = "tensorrt_llm"


def test_bench_of_text_needs_a_model_that_takes_it(server: FakeTriton) -> None:
    result = invoke("end-to-end", "-u", server.endpoint.grpc, "-m", CORE)
    assert isinstance(result.exception, BadInput)
    assert "does not accept text" in str(result.exception)


LOADS = {
    (): ("--num-requests", "2"),
    ("sweep",): ("--num-requests", "2", "--concurrency", "1,2"),
    ("search",): ("--duration", "0.2", "--slo", "latency:p95<9s", "--max-rate", "2"),
}


@pytest.mark.parametrize("group", LOADS, ids=lambda group: "".join(group) or "bench")
def test_bench_of_text_checks_answers_once(server: FakeTriton, group: tuple[str, ...]) -> None:
    words = (*group, "end-to-end", "-u", server.endpoint.grpc, "-m", "ensemble")
    result = invoke(*words, *LOADS[group])
    assert result.exit_code == 0, result.output
    assert result.stderr.count("Functionality check passed") == 1
    assert [each.model for each in server.requests[:3]] == [
        "ensemble",
        "ensemble",
        "tensorrt_llm_bls",
    ]


def test_bench_of_text_does_not_start_if_answers_differ(server: FakeTriton) -> None:
    server.answer = lambda request: iter([{"text_output": [str(len(server.requests))]}])
    words = ("end-to-end", "-u", server.endpoint.grpc, "-m", "ensemble", "--num-requests", "5")
    result = invoke(*words)
    assert isinstance(result.exception, CheckFailed)
    assert len(server.requests) == 2


def test_check_of_answers_can_be_skipped(server: FakeTriton) -> None:
    words = ("end-to-end", "-u", server.endpoint.grpc, "-m", "ensemble", "--num-requests", "5")
    result = invoke(*words, "--no-check-answers", "--warmup", "0")
    assert (result.exit_code, len(server.requests)) == (0, 5)
    assert "Functionality check" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--max-input-len", "9"), "--max-input-len applies only to data sets"),
        (("--op-tokens-per-word", "1.3"), "--op-tokens-per-word applies only to data sets"),
        (
            ("--dataset", "x.json", "--input-words", "9"),
            "--input-words applies only to random prompts",
        ),
    ],
    ids=lambda value: value[-2] if isinstance(value, tuple) else "",
)
def test_bench_of_text_refuses_unused_options(arguments: tuple[str, ...], words: str) -> None:
    result = invoke("end-to-end", "-u", "127.0.0.1:1", *arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
