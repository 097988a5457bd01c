"""Compare greedy tokens of the small model through Triton with those of vLLM alone.

The model's answers depend on the whole prompt, so wrong attention or a wrong block of the KV cache
changes them. Prompts sent one after another must have equal tokens. In a batch, numerical
differences can change a token, also between two runs of vLLM alone.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from gpu_check import Check, change_early_token, greedy_prompts
from gpu_served import served
from gpu_vllm import run_raw
from messages import add
from tritonclient.grpc import service_pb2

from trtllm_serve_cli.client.transport.over_grpc import connect
from trtllm_serve_cli.launch.servers.running import RunningServer

Tokens = list[list[int]]


def check_greedy(check: Check) -> dict[str, Any]:
    """Compare the tokens of prompts sent one after another, and of prompts sent together."""
    prompts = greedy_prompts(check)
    expected = generate_raw(check, prompts)
    with served(check, check.small) as server:
        single = generate_all(server, prompts, check.sizes.greedy_tokens)
        with ThreadPoolExecutor(len(prompts)) as pool:
            together = pool.map(
                lambda prompt: generate_tokens(server, prompt, check.sizes.greedy_tokens), prompts
            )
            together = list(together)
    one_by_one = expected["greedy"]
    return {
        "expected": one_by_one,
        **compare_tokens(one_by_one, single),
        "together": compare_tokens(one_by_one, together),
        "vllm_together": compare_tokens(one_by_one, expected["together"]),
        "num_changed": count_different(one_by_one, expected["changed"]),
    }


def generate_raw(check: Check, prompts: list[list[int]]) -> dict[str, Tokens]:
    """Return vLLM's tokens one by one, in a batch, and with an early token changed."""
    num_tokens = check.sizes.greedy_tokens
    jobs = {
        "greedy": {"kind": "greedy", "prompts": prompts, "num_tokens": num_tokens},
        "together": {"kind": "together", "prompts": prompts, "num_tokens": num_tokens},
        "changed": {"kind": "greedy", "prompts": change_early_token(prompts),
                    "num_tokens": num_tokens},
    }  # fmt: skip
    found = run_raw(check, "greedy", check.arguments(check.small), jobs)
    return {name: found[name]["tokens"] for name in jobs}


def generate_all(server: RunningServer, prompts: list[list[int]], num_tokens: int) -> Tokens:
    """Generate greedy tokens through `tensorrt_llm`, one prompt after another."""
    return [generate_tokens(server, prompt, num_tokens) for prompt in prompts]


def generate_tokens(
    server: RunningServer, prompt: list[int], num_tokens: int, adapter: str | None = None
) -> list[int]:
    """Generate greedy tokens through `tensorrt_llm`, with the adapter of this name."""
    request = service_pb2.ModelInferRequest(model_name="tensorrt_llm")
    add(request, "input_ids", "INT32", np.array([prompt], np.int32))
    add(request, "input_lengths", "INT32", np.array([[len(prompt)]], np.int32))
    add(request, "request_output_len", "INT32", np.array([[num_tokens]], np.int32))
    add(request, "exclude_input_in_output", "BOOL", np.array([[True]]))
    if adapter is not None:
        request.parameters["lora_name"].string_param = adapter
    with connect(server.endpoint.grpc) as stub:
        for answer in stub.ModelStreamInfer(iter([request])):
            assert not answer.error_message, answer.error_message
            reply = answer.infer_response
            for output, content in zip(reply.outputs, reply.raw_output_contents, strict=True):
                if output.name == "output_ids":
                    return [int(token) for token in np.frombuffer(content, np.int32)]
    raise AssertionError("the response has no tokens")


def compare_tokens(expected: Tokens, got: Tokens) -> dict[str, Any]:
    """Count the prompts with equal tokens, and return the common prefix length of each."""
    agree = [
        next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
        if len(one) == len(other)
        else 0
        for one, other in zip(expected, got, strict=True)
    ]
    return {
        "num_prompts": len(expected),
        "num_equal": len(expected) - count_different(expected, got),
        "agree_up_to": agree,
    }


def count_different(expected: Tokens, got: Tokens) -> int:
    return sum(one != other for one, other in zip(expected, got, strict=True))
