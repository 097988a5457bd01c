"""Errors of engines that reject a request name the parameters of the API, not Triton's tensors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.gateway.fakes import FakeBackend, fail, make_client
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.repository.model.contract import load_contracts
from trtllm_serve_cli.runtime.engine import EngineLimits, GenerationRequest, InvalidRequest
from trtllm_serve_cli.runtime.engines.openvino.request import Drafts, find_guide, make_config
from trtllm_serve_cli.runtime.engines.openvino.scoring import check_scorable
from trtllm_serve_cli.runtime.engines.pytorch.sampler import SamplerLimits
from trtllm_serve_cli.runtime.engines.pytorch.sampling import check_servable as check_pytorch
from trtllm_serve_cli.runtime.engines.vllm.sampling import check_servable as check_vllm
from trtllm_serve_cli.runtime.lora.adapter_request import check_no_adapter, explain_unknown
from trtllm_serve_cli.runtime.request_check import check_request

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
TOOLS = [{"type": "function", "function": {"name": "time"}}]
FORCED = {"tools": TOOLS, "tool_choice": "required"}
# Tensor names that are also names of parameters.
OF_THE_API = {
    "frequency_penalty", "min_tokens", "presence_penalty", "repetition_penalty", "seed",
    "temperature", "stop", "stream", "max_tokens", "bad_words", "top_k", "top_p",
}  # fmt: skip
TENSORS = {
    tensor.name for each in load_contracts().values() for tensor in each.inputs
} - OF_THE_API  # fmt: skip

EAGLE = {"speculative_config": {"decoding_type": "Eagle"}}
OLD = SamplerLimits(
    "the sampler", frozenset(("logit_bias", "num_top_log_probs", "return_prompt_log_probs"))
)


def limit(request: GenerationRequest) -> None:
    check_request(request, EngineLimits(max_seq_len=100, vocab_size=50, max_beam_width=1))


def speculate(request: GenerationRequest) -> None:
    make_config(request, None, Drafts(5, are_looked_up=True))


def configure(request: GenerationRequest) -> None:
    make_config(request, None, None)


def constrain(request: GenerationRequest) -> None:
    find_guide(request, None)


def serve(request: GenerationRequest) -> None:
    check_pytorch(request, {}, SamplerLimits())


def draft(request: GenerationRequest) -> None:
    check_pytorch(request, EAGLE, SamplerLimits())


def sample(request: GenerationRequest) -> None:
    check_pytorch(request, {}, OLD)


def adapt(request: GenerationRequest) -> None:
    check_no_adapter(request, "--lora")


def find_adapter(request: GenerationRequest) -> None:
    raise InvalidRequest(explain_unknown(request, ("a", "b")))


GUIDED = {"guide_type": "json_schema", "guide": "{}"}
Check = Callable[[GenerationRequest], None]
# For each name: the engine's check, the fields that it rejects, the API call, the parameter.
CASES: dict[str, tuple[Check, dict[str, Any], tuple[str, dict[str, Any]], str]] = {
    "tools with drafts": (speculate, GUIDED, (CHAT, FORCED), "tool_choice"),
    "tools of a message": (
        speculate,
        GUIDED,
        (MESSAGES, {"tools": [{"name": "a", "input_schema": {}}], "tool_choice": {"type": "any"}}),
        "tool_choice",
    ),
    "regex with drafts": (speculate, GUIDED, (CHAT, {"guided_regex": "a"}), "guided_regex"),
    "format with drafts": (
        speculate,
        GUIDED,
        (RESPONSES, {"text": {"format": {"type": "json_object"}}}),
        "text.format",
    ),
    "bad words with drafts": (
        speculate, {"bad_words": ((1,),)}, (CHAT, {"bad_words": ["a"]}), "bad_words",
    ),
    "n with drafts": (speculate, {"num_return_sequences": 2}, (CHAT, {"n": 2}), "n"),
    "bias": (configure, {"logit_bias": ((1, 1.0),)}, (CHAT, {}), "logit_bias"),
    "top log probs": (configure, {"num_top_log_probs": 2}, (CHAT, {}), "top_logprobs"),
    "log probs": (configure, {"num_top_log_probs": 2}, (COMPLETIONS, {}), "logprobs"),
    "two constraints": (constrain, GUIDED | {"bad_words": ((1,),)}, (CHAT, {}), "bad_words"),
    "scored guide": (
        check_scorable, GUIDED, (COMPLETIONS, {"guided_regex": "a"}), "guided_regex",
    ),
    "scored n": (
        check_scorable, {"num_return_sequences": 2}, (COMPLETIONS, {"best_of": 2}), "best_of",
    ),
    "scored bias": (check_scorable, {"logit_bias": ((1, 1.0),)}, (COMPLETIONS, {}), "logit_bias"),
    "no guides": (serve, GUIDED, (CHAT, FORCED), "tool_choice"),
    "sampling": (draft, {"top_p": 0.5}, (CHAT, {}), "temperature"),
    "Eagle n": (draft, {"num_return_sequences": 2}, (CHAT, {"n": 2}), "n"),
    "Eagle log probs": (draft, {"return_log_probs": True}, (CHAT, {}), "logprobs"),
    "Eagle bad words": (draft, {"bad_words": ((1,),)}, (CHAT, {}), "bad_words"),
    "old bias": (sample, {"logit_bias": ((1, 1.0),)}, (CHAT, {}), "logit_bias"),
    "old log probs": (sample, {"num_top_log_probs": 2}, (CHAT, {}), "top_logprobs"),
    "old echo": (sample, {"return_prompt_log_probs": True}, (COMPLETIONS, {}), "echo"),
    "vLLM": (check_vllm, {"presence_penalty": 9.0}, (CHAT, {}), "presence_penalty"),
    "ids": (limit, {"input_ids": (-1,)}, (CHAT, {}), "messages"),
    "ids of a prompt": (limit, {"input_ids": (-1,)}, (COMPLETIONS, {}), "prompt"),
    "ids of a response": (limit, {"input_ids": (-1,)}, (RESPONSES, {}), "input"),
    "stop words": (limit, {"stop_words": ((99,),)}, (CHAT, {}), "stop_token_ids"),
    "max_tokens": (limit, {"max_new_tokens": 999}, (CHAT, {"max_tokens": 999}), "max_tokens"),
    "completion tokens": (
        limit,
        {"max_new_tokens": 999},
        (CHAT, {"max_completion_tokens": 999}),
        "max_completion_tokens",
    ),
    "output tokens": (limit, {"max_new_tokens": 999}, (RESPONSES, {}), "max_output_tokens"),
    "top_k": (limit, {"top_k": 51}, (CHAT, {}), "top_k"),
    "top_p": (limit, {"top_p": 2.0}, (CHAT, {}), "top_p"),
    "bias id": (limit, {"logit_bias": ((99, 1.0),)}, (CHAT, {}), "logit_bias"),
    "guide": (limit, GUIDED | {"guide": "["}, (CHAT, {"guided_json": "["}), "guided_json"),
    "guide of tools": (limit, GUIDED | {"guide": "["}, (CHAT, FORCED), "tools"),
    "adapter": (adapt, {"lora_name": "a"}, (CHAT, {}), "model"),
    "unknown adapter": (find_adapter, {"lora_name": "c"}, (CHAT, {}), "model"),
}  # fmt: skip
# The cases about the value of a parameter that the engine supports.
NOT_UNSUPPORTED = {
    "n with drafts", "two constraints", "vLLM", "ids", "ids of a prompt", "ids of a response",
    "stop words", "max_tokens", "completion tokens", "output tokens", "top_k", "top_p", "bias id",
    "guide", "guide of tools", "adapter", "unknown adapter",
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_error_names_the_parameter(name: str) -> None:
    check, fields, (path, body), param = CASES[name]
    with pytest.raises(InvalidRequest) as raised:
        check(GenerationRequest(**{"id": 1, "input_ids": (1,), "max_new_tokens": 1, **fields}))
    prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
    if path in (COMPLETIONS, RESPONSES):
        prompt = {"prompt": "Hi"} if path == COMPLETIONS else {"input": "Hi"}
    limits = {"max_tokens": 9} if path == MESSAGES else {}
    info = ModelInfo("demo", max_seq_len=5000)
    with make_client(FakeBackend(fail(str(raised.value), rejected=True)), info=info) as client:
        response = client.post(path, json={"model": "demo", **prompt, **limits, **body})
    error = response.json()["error"]
    # Parameters of the model, such as num_draft_tokens=0, may have the name of a tensor.
    words = set(re.findall(r"\w+(?![\w=])", error["message"]))
    assert response.status_code == 400
    assert f"`{param}`" in error["message"]
    assert error["message"].endswith(".")
    assert not words & (TENSORS - {param}) and "tensor" not in words, error["message"]
    if path == MESSAGES:
        return
    assert error["param"] == param
    assert (error["code"] == "unsupported_parameter") == (name not in NOT_UNSUPPORTED)
