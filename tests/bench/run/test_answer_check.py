"""The functionality check before a benchmark with text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.triton.answers import ModelError, Outputs, Request
from tests.fakes.triton.server import FakeTriton
from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
from trtllm_serve_cli.bench.model.arrivals import AllAtOnce
from trtllm_serve_cli.bench.model.served_model import Target
from trtllm_serve_cli.bench.run.answer_check import check_answers, describe_check, plan_request
from trtllm_serve_cli.bench.workloads.dataset import Entry, Lengths, as_text
from trtllm_serve_cli.bench.workloads.words import RandomWords
from trtllm_serve_cli.client.generate import Interface
from trtllm_serve_cli.errors import CheckFailed, RequestFailed

SETTINGS = BenchmarkSettings(RandomWords(5, 0, 3, 0), AllAtOnce(), input_kind="text")


@pytest.fixture
def triton() -> Iterator[FakeTriton]:
    with FakeTriton() as fake:
        yield fake


def _target(triton: FakeTriton, model: str, interface: Interface = "grpc") -> Target:
    address = triton.endpoint.grpc if interface == "grpc" else triton.endpoint.http
    return Target(address, model, interface)


@pytest.mark.parametrize("interface", ["grpc", "http"])
def test_one_prompt_is_sent_greedily_to_all_text_models(
    triton: FakeTriton, interface: Interface
) -> None:
    names = check_answers(_target(triton, "ensemble", interface), SETTINGS)
    assert names == ["ensemble", "tensorrt_llm_bls"]
    assert [each.model for each in triton.requests] == ["ensemble", *names]
    assert all(sent == triton.received[0] for sent in triton.received)
    assert (triton.received[0]["top_k"], triton.received[0]["max_tokens"]) == (1, 3)


def test_missing_models_are_skipped(triton: FakeTriton) -> None:
    triton.unloaded = {"tensorrt_llm_bls"}
    assert check_answers(_target(triton, "ensemble"), SETTINGS) == ["ensemble"]


def test_models_of_the_same_repository_are_compared(triton: FakeTriton) -> None:
    triton.parameters_of = {"a": {"tensorrt_llm_model_name": "a_tensorrt_llm"}}
    names = check_answers(_target(triton, "a"), SETTINGS)
    assert names == ["a", "a_ensemble", "a_tensorrt_llm_bls"]


def test_different_answers_of_two_models_are_shown(triton: FakeTriton) -> None:
    def answer(request: Request) -> Iterator[Outputs]:
        is_bls = request.model == "tensorrt_llm_bls"
        yield {"text_output": ["one three" if is_bls else "one two"]}

    triton.answer = answer
    with pytest.raises(CheckFailed, match="ensemble and tensorrt_llm_bls returned") as raised:
        check_answers(_target(triton, "ensemble"), SETTINGS)
    assert "starting at character 6: 'wo' and 'hree'" in raised.value.why
    assert "--no-check-answers" in raised.value.next_step


def test_two_answers_of_one_model_are_refused(triton: FakeTriton) -> None:
    triton.answer = lambda request: iter([{"text_output": [str(len(triton.requests))]}])
    with pytest.raises(CheckFailed, match="ensemble returned two different responses to the same"):
        check_answers(_target(triton, "ensemble"), SETTINGS)
    assert len(triton.requests) == 2


def test_failure_of_another_model_is_an_error(triton: FakeTriton) -> None:
    def answer(request: Request) -> Iterator[Outputs]:
        if request.model == "tensorrt_llm_bls":
            raise ModelError("out of cheese")
        yield {"text_output": ["a"]}

    triton.answer = answer
    with pytest.raises(RequestFailed, match="The request to tensorrt_llm_bls failed"):
        check_answers(_target(triton, "ensemble"), SETTINGS)


@pytest.mark.parametrize(("num_warmup", "prompt"), [(0, "c"), (1, "c"), (2, "b")])
def test_data_set_is_checked_with_a_warm_up_prompt(num_warmup: int, prompt: str) -> None:
    entries = [Entry(each, each, answer="x y") for each in "abc"]
    workload = as_text("file", entries, Lengths(4))
    settings = BenchmarkSettings(workload, AllAtOnce(), num_warmup_requests=num_warmup)
    request = plan_request(settings)
    assert (request.text_input, request.max_tokens) == (prompt, 4)


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (("a",), "Functionality check passed: a returned the same response twice."),
        (
            ("a", "b", "c"),
            "Functionality check passed: a returned the same response twice, and b and c returned "
            "the same response.",
        ),
    ],
)
def test_result_is_one_line(names: tuple[str, ...], line: str) -> None:
    assert describe_check(names) == line
