"""Measure the overhead of the text models over direct requests to `tensorrt_llm`.

    python benchmarks/contract.py [--rounds 7] [--requests 32] [--json]

Serves the demo model and sends the same prompts in turns: as token ids to `tensorrt_llm`, and as
text to `ensemble` and `tensorrt_llm_bls`, always streaming over gRPC. With all requests sent
together, it compares output tokens per second. With one in flight, it compares the time to the
first response with a token or text; the models alternate per request, because the speed of a
machine drifts by more than the overhead. Results are medians: over the rounds, of a model's ratio
to `tensorrt_llm` in the same round; over the turns, of its difference in the same turn.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import queue
import statistics
import threading
import time
from typing import Any

import numpy as np
import openvino_genai
from messages import add, count_tokens
from tritonclient.grpc import service_pb2

from trtllm_serve_cli.client.transport.over_grpc import connect
from trtllm_serve_cli.importing.declaration import Declaration, ModelSection
from trtllm_serve_cli.importing.importer import import_model
from trtllm_serve_cli.launch.planning.local_plan import plan_for_this_machine
from trtllm_serve_cli.launch.supervisor.lifecycle import launch
from trtllm_serve_cli.launch.supervisor.stopping import stop_server
from trtllm_serve_cli.paths import find_home

CORE, TEXT_MODELS = "tensorrt_llm", ("ensemble", "tensorrt_llm_bls")
PROMPT_TOKENS, OUTPUT_TOKENS = 128, 64
# For the requests that measure the time to first token.
NUM_TURNS, TOKENS_ALONE = 50, 2
# Not a valid token id: the response runs to its full length.
NO_END_ID = -1


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    home = find_home()
    rendered, _ = import_model(Declaration(ModelSection("demo")), home)
    tokenizer = openvino_genai.Tokenizer(str(rendered.engine.path))
    plan = plan_for_this_machine(
        home, ["demo"], {"http_port": 8100, "grpc_port": 8101, "metrics_port": 8102}
    )
    server = launch(plan, on_progress=lambda loading: None)
    try:
        rounds = [
            measure_round(server.endpoint.grpc, tokenizer, arguments.requests, seed)
            for seed in range(arguments.rounds + 1)
        ][1:]
    finally:
        stop_server(server)
    report(rounds, as_json=arguments.json)


def measure_round(address: str, tokenizer: Any, num_requests: int, seed: int) -> dict[str, Any]:
    """Return each model's tokens per second, and its times to first token (ms) by turn."""
    rng = np.random.default_rng(seed)
    models = [CORE, *TEXT_MODELS]
    rng.shuffle(models)
    tokens_per_s = {
        model: measure_together(address, model, make_prompts(tokenizer, rng, num_requests))
        for model in models
    }
    ttft_ms: dict[str, list[float]] = {model: [] for model in models}
    for _ in range(NUM_TURNS):
        rng.shuffle(models)
        for model, prompt in zip(models, make_prompts(tokenizer, rng, len(models)), strict=True):
            ttft_ms[model].append(1000 * measure_first(address, model, prompt))
    return {"tokens_per_s": tokens_per_s, "ttft_ms": ttft_ms}


def make_prompts(tokenizer: Any, rng: Any, number: int) -> list[tuple[str, list[int]]]:
    """Return new prompts, which are not cached, as text and as the token ids of that text."""
    prompts = []
    while len(prompts) < number:
        text = tokenizer.decode(rng.integers(1000, 30_000, 2 * PROMPT_TOKENS).tolist())
        ids = tokenizer.encode(text).input_ids.data[0][:PROMPT_TOKENS].tolist()
        text = tokenizer.decode(ids)
        again = tokenizer.encode(text).input_ids.data[0].tolist()
        if abs(len(again) - PROMPT_TOKENS) <= 2:
            prompts.append((text, again))
    return prompts


def measure_together(address: str, model: str, prompts: list[tuple[str, list[int]]]) -> float:
    """Return the output tokens per second with all prompts sent together."""
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    with connect(address) as stub:

        def send(prompt: tuple[str, list[int]]) -> None:
            request = plan_request(model, prompt, OUTPUT_TOKENS)
            responses = stub.ModelStreamInfer(iter([request]))
            ended.put(sum(count_tokens(response) for response in responses))

        threads = [threading.Thread(target=send, args=(prompt,)) for prompt in prompts]
        started_s = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took_s = time.perf_counter() - started_s
    counts = [ended.get() for _ in prompts]
    assert counts == [OUTPUT_TOKENS] * len(prompts), counts
    return sum(counts) / took_s


def measure_first(address: str, model: str, prompt: tuple[str, list[int]]) -> float:
    """Return the seconds to the first response with a token, with one request in flight."""
    with connect(address) as stub:
        request = plan_request(model, prompt, TOKENS_ALONE)
        started_s = time.perf_counter()
        first_s = None
        for response in stub.ModelStreamInfer(iter([request])):
            if first_s is None and count_tokens(response):
                first_s = time.perf_counter() - started_s
        assert first_s is not None
        return first_s


def plan_request(model: str, prompt: tuple[str, list[int]], num_tokens: int) -> Any:
    """Return a streaming request that runs to its full length and returns token counts."""
    text, ids = prompt
    request = service_pb2.ModelInferRequest(model_name=model)
    add(request, "end_id", "INT32", np.array([[NO_END_ID]], np.int32))
    add(request, "return_num_output_tokens", "BOOL", np.array([[True]]))
    if model == CORE:
        add(request, "input_ids", "INT32", np.array([ids], np.int32))
        add(request, "input_lengths", "INT32", np.array([[len(ids)]], np.int32))
        add(request, "request_output_len", "INT32", np.array([[num_tokens]], np.int32))
        add(request, "streaming", "BOOL", np.array([[True]]))
    else:
        encoded = text.encode()
        request.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
        request.raw_input_contents.append(len(encoded).to_bytes(4, "little") + encoded)
        add(request, "max_tokens", "INT32", np.array([[num_tokens]], np.int32))
        add(request, "stream", "BOOL", np.array([[True]]))
    return request


def report(rounds: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print the rounds, and the medians of the text models' overhead."""
    figures = {
        model: {
            "tokens_per_s_ratio": statistics.median(
                each["tokens_per_s"][model] / each["tokens_per_s"][CORE] for each in rounds
            ),
            "ttft_added_ms": statistics.median(
                model_ms - core_ms
                for each in rounds
                for model_ms, core_ms in zip(
                    each["ttft_ms"][model], each["ttft_ms"][CORE], strict=True
                )
            ),
        }
        for model in TEXT_MODELS
    }
    machine = f"{platform.machine()}, {multiprocessing.cpu_count()} cores"
    if as_json:
        print(json.dumps({"machine": machine, "rounds": rounds, "figures": figures}, indent=2))
        return
    models = (CORE, *TEXT_MODELS)
    print("output tokens/s, sent together | time to first token, one in flight (ms)")
    print("  ".join(f"{model:>16}" for model in models * 2))
    for each in rounds:
        cells = [each["tokens_per_s"][model] for model in models]
        cells += [statistics.median(each["ttft_ms"][model]) for model in models]
        print("  ".join(f"{cell:>16.1f}" for cell in cells))
    for model, figure in figures.items():
        print(
            f"{model}: {figure['tokens_per_s_ratio']:.3f} of the tokens/s, "
            f"{figure['ttft_added_ms']:+.1f} ms to the first token ({machine})"
        )


if __name__ == "__main__":
    main()
