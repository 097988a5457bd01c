"""Text requests that run through the three models of a repository in turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.triton import over_grpc
from tests.fakes.triton.answers import (
    DATATYPES,
    ModelError,
    Outputs,
    Request,
    Silence,
    follow_prompt,
    tokens,
)
from tests.fakes.triton.over_grpc import encode_response
from tests.fakes.triton.server import FakeTriton
from trtllm_serve_cli.client.ask import generate
from trtllm_serve_cli.client.generate import Completion, GenerateRequest
from trtllm_serve_cli.client.model_info import ModelInfo, fetch_model_config
from trtllm_serve_cli.client.token_pipeline import TokenPipeline, open_token_pipeline
from trtllm_serve_cli.errors import BadInput, RequestFailed, TimedOut


def follow_ids(request: Request) -> Iterator[Outputs]:
    """Answer with the successor of each prompt token, and with a shorter second sequence."""
    if "input_ids" not in request.inputs:
        yield from follow_prompt(request)
        return
    prompt = request.inputs["input_ids"]
    if "exclude_input_in_output" not in request.inputs:
        ids = [*prompt, *(token + 1 for token in prompt)]
        yield {"output_ids": ids, "sequence_length": [len(ids)]}
        return
    for index in range(request.inputs.get("num_return_sequences", 1)):
        length = len(prompt) - index
        ids = [token + 1 for token in prompt[:length]]
        padded = [*ids, *[0] * index]
        log_probs = {"cum_log_probs": [-1.0], "output_log_probs": [-0.5] * len(padded)}
        yield {
            "output_ids": padded,
            "sequence_length": [length],
            "sequence_index": [index],
            **log_probs,
        }


@pytest.fixture
def triton() -> Iterator[FakeTriton]:
    with FakeTriton(answer=follow_ids) as fake:
        yield fake


def _open(triton: FakeTriton, model: str = "ensemble") -> TokenPipeline:
    return open_token_pipeline(triton.endpoint, fetch_model_config(triton.endpoint, model))


def _generate(triton: FakeTriton, request: GenerateRequest) -> Completion:
    return generate(_open(triton), "ensemble", request)


def test_response_has_text_and_ids(triton: FakeTriton) -> None:
    done = _generate(triton, GenerateRequest("abc", request_id="r"))
    assert (done.input_ids, done.output_ids, done.texts) == (
        (97, 98, 99),
        ((98, 99, 100),),
        ("bcd",),
    )
    assert (done.num_input_tokens, done.num_output_tokens) == (3, 3)
    assert [(each.model, each.id) for each in triton.requests] == [
        ("preprocessing", "r"),
        ("tensorrt_llm", "r"),
        ("postprocessing", "r"),
    ]


def test_options_reach_the_models_that_have_them(triton: FakeTriton) -> None:
    request = GenerateRequest(
        "ab", max_tokens=5, top_k=1, top_p=0.5, length_penalty=2.0, seed=7, stop_words=("x",)
    )
    _generate(triton, request)
    assert triton.received[:2] == [
        {"QUERY": "ab", "REQUEST_OUTPUT_LEN": 5, "STOP_WORDS_DICT": "x"},
        {
            "input_ids": [97, 98],
            "input_lengths": 2,
            "request_output_len": 5,
            "runtime_top_k": 1,
            "runtime_top_p": 0.5,
            "len_penalty": 2.0,
            "seed": 7,
            "exclude_input_in_output": True,
            "return_num_input_tokens": True,
            "return_num_output_tokens": True,
        },
    ]


def test_every_sequence_has_ids_and_log_probabilities(triton: FakeTriton) -> None:
    request = GenerateRequest("abc", num_return_sequences=2, return_log_probs=True)
    done = _generate(triton, request)
    assert done.output_ids == ((98, 99, 100), (98, 99))
    assert (done.texts, done.num_output_tokens, done.cum_log_probs) == (("bcd", "bc"), 5, (-1, -1))


def test_old_versions_return_the_prompt_and_use_other_names(triton: FakeTriton) -> None:
    triton.inputs_of = {
        "tensorrt_llm": ("input_ids", "input_lengths", "request_output_len", "random_seed"),
        "postprocessing": ("TOKENS_BATCH", "SEQUENCE_LENGTH", "CUM_LOG_PROBS"),
    }
    done = _generate(triton, GenerateRequest("abc", seed=1))
    assert (done.texts, done.output_ids) == (("bcd",), ((98, 99, 100),))
    assert triton.received[1]["random_seed"] == 1


def test_postprocessing_receives_required_outputs(triton: FakeTriton) -> None:
    triton.inputs_of = {"postprocessing": ("TOKENS_BATCH", "SEQUENCE_LENGTH", "CUM_LOG_PROBS")}
    _generate(triton, GenerateRequest("abc"))
    assert triton.received[2] == {
        "TOKENS_BATCH": [98, 99, 100],
        "SEQUENCE_LENGTH": [3],
        "CUM_LOG_PROBS": -1.0,
    }


def test_response_without_tokens_has_no_text(triton: FakeTriton) -> None:
    def answer(request: Request) -> Iterator[Outputs]:
        yield from [tokens(0)] if "input_ids" in request.inputs else follow_prompt(request)

    triton.answer = answer
    done = _generate(triton, GenerateRequest("abc"))
    assert (done.texts, done.output_ids) == (("",), ((),))


@pytest.mark.parametrize("model", ["preprocessing", "tensorrt_llm", "postprocessing"])
def test_servers_without_the_models_are_refused(triton: FakeTriton, model: str) -> None:
    triton.unloaded.add(model)
    with pytest.raises(BadInput, match="cannot return token ids") as raised:
        _open(triton)
    assert model in raised.value.why and "inflight" in raised.value.next_step


def test_models_without_lengths_are_refused(triton: FakeTriton) -> None:
    triton.inputs_of = {"postprocessing": ("TOKENS_BATCH",)}
    with pytest.raises(BadInput, match="cannot return token ids") as raised:
        _open(triton)
    assert raised.value.why.startswith("postprocessing does not have a SEQUENCE_LENGTH input")


@pytest.mark.parametrize("model", ["preprocessing", "tensorrt_llm", "postprocessing"])
def test_failure_of_a_model_names_it(triton: FakeTriton, model: str) -> None:
    def answer(request: Request) -> Iterator[Outputs]:
        if request.model == model:
            raise ModelError("out of cheese")
        yield from follow_ids(request)

    triton.answer = answer
    with pytest.raises(RequestFailed, match=f"The request to {model} failed"):
        _generate(triton, GenerateRequest("abc"))


@pytest.mark.parametrize("end", [-1, 0], ids=["truncated", "missing"])
@pytest.mark.parametrize("model", ["preprocessing", "tensorrt_llm", "postprocessing"])
def test_invalid_tensors_are_refused(
    triton: FakeTriton, monkeypatch: pytest.MonkeyPatch, model: str, end: int
) -> None:
    def encode(outputs: Outputs, request: Any) -> Any:
        response = encode_response(outputs, request)
        if request.model_name == model and outputs:
            content = response.raw_output_contents.pop()
            response.raw_output_contents.extend([content[:end]] if end else [])
        return response

    monkeypatch.setattr(over_grpc, "encode_response", encode)
    with pytest.raises(RequestFailed, match=r"The response from .* is invalid") as raised:
        _generate(triton, GenerateRequest("abc"))
    assert raised.value.why.startswith("an output tensor is invalid: ")


def test_text_that_is_not_a_string_is_refused(
    triton: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DATATYPES, "OUTPUT", "INT32")

    def answer(request: Request) -> Iterator[Outputs]:
        yield from [{"OUTPUT": [5]}] if "TOKENS_BATCH" in request.inputs else follow_ids(request)

    triton.answer = answer
    with pytest.raises(RequestFailed, match=r"The response from .* is invalid"):
        _generate(triton, GenerateRequest("abc"))


def test_time_limit_applies_to_all_models(triton: FakeTriton) -> None:
    def answer(request: Request) -> Iterator[Outputs]:
        if request.model == "postprocessing":
            raise Silence
        yield from follow_ids(request)

    triton.answer = answer
    with pytest.raises(TimedOut):
        generate(_open(triton), "ensemble", GenerateRequest("abc"), timeout_s=0.3)


@pytest.mark.parametrize(
    ("info", "core"),
    [
        (ModelInfo("ensemble"), "tensorrt_llm"),
        (ModelInfo("tensorrt_llm_bls"), "tensorrt_llm"),
        (ModelInfo("a_ensemble"), "a_tensorrt_llm"),
        (ModelInfo("demo"), "tensorrt_llm"),
        (ModelInfo("demo", core_model="demo_tensorrt_llm"), "demo_tensorrt_llm"),
        (ModelInfo("a_ensemble", core_model="engine"), "engine"),
    ],
)
def test_core_model_has_the_prefix_of_the_text_model(info: ModelInfo, core: str) -> None:
    assert info.name_of("tensorrt_llm") == core
    prefix = core.removesuffix("tensorrt_llm") if core != "engine" else "a_"
    assert info.name_of("preprocessing") == f"{prefix}preprocessing"


def test_models_of_one_repository_are_used(triton: FakeTriton) -> None:
    triton.parameters_of = {"demo": {"tensorrt_llm_model_name": "demo_tensorrt_llm"}}
    generate(_open(triton, "demo"), "demo", GenerateRequest("abc"))
    models = [each.model for each in triton.requests]
    assert models == ["demo_preprocessing", "demo_tensorrt_llm", "demo_postprocessing"]
