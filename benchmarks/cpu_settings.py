"""Compare settings of the OpenVINO engine.

    python benchmarks/cpu_settings.py num_threads=1 max_num_tokens=512 [--rounds 5] [--json]

Imports the demo model, and loads its engine once with the default settings and once with each
variant, in separate processes. A variant is KEY=VALUE, or several pairs separated by commas. The
variants run the same requests in turns, so only one engine is active at a time. In each run,
`--streams` requests are in flight, and each completed request is followed by the next one. The
table shows medians over the rounds: requests per second, their ratio to the defaults in the same
round, the time to the first token, and the 99th percentile of the pauses between two tokens of a
request.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from trtllm_serve_cli.importing.declaration import Declaration, ModelSection
from trtllm_serve_cli.importing.importer import import_model
from trtllm_serve_cli.paths import find_home
from trtllm_serve_cli.runtime.engine import GenerationRequest
from trtllm_serve_cli.runtime.engines.openvino.kind import KIND
from trtllm_serve_cli.runtime.triton.parameters import Parameters

DEFAULTS = "defaults"


def serve(config: dict[str, Any], pipe: Connection) -> None:
    """Run an engine: receive prompts and lengths, and send the measurements of each run."""
    assert KIND.load is not None
    engine = KIND.load(config)
    pipe.send("ready")
    number = 0
    while (job := pipe.recv()) is not None:
        prompts, output_tokens, num_streams = job
        requests = [
            GenerationRequest(number + index, tuple(prompt), output_tokens)
            for index, prompt in enumerate(prompts, 1)
        ]
        number += len(requests)
        pipe.send(run_requests(engine, requests, num_streams))
    engine.close()


def run_requests(
    engine: Any, requests: list[GenerationRequest], num_streams: int
) -> dict[str, float]:
    """Run the requests with `num_streams` in flight, and return the measurements."""
    waiting = list(reversed(requests))
    sent: dict[int, float] = {}
    last: dict[int, float] = {}
    first_s: list[float] = []
    pauses_s: list[float] = []
    num_done = 0
    started_s = time.perf_counter()
    while num_done < len(requests):
        while waiting and len(sent) - num_done < num_streams:
            request = waiting.pop()
            sent[request.id] = time.perf_counter()
            engine.submit(request)
        updates = engine.step()
        now_s = time.perf_counter()
        for update in updates:
            assert not update.error, update.error
            if update.token_ids:
                before_s = last.get(update.request_id)
                target = first_s if before_s is None else pauses_s
                target.append(now_s - (before_s or sent[update.request_id]))
                last[update.request_id] = now_s
            num_done += update.finish_reason is not None
    return {
        "requests_per_s": len(requests) / (time.perf_counter() - started_s),
        "first_token_s": statistics.median(first_s),
        "pause_p99_s": float(np.percentile(pauses_s, 99)),
    }


def parse_variant(text: str) -> dict[str, str]:
    """Return the parameters in "KEY=VALUE,KEY=VALUE"."""
    return dict(pair.split("=", 1) for pair in text.split(","))


def worker_config(parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the configuration that the `tensorrt_llm` model sends to its engine worker."""
    entries = {name: {"string_value": value} for name, value in parameters.items()}
    config = json.dumps({"parameters": entries})
    assert KIND.worker_config is not None
    return KIND.worker_config(
        Parameters({"model_name": "demo", "model_version": "1", "model_config": config})
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variants", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--input-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rendered, _ = import_model(Declaration(ModelSection("demo")), find_home())
    core = next(model for model in rendered.models if model.name == "tensorrt_llm")
    variants = {DEFAULTS: {}, **{text: parse_variant(text) for text in arguments.variants}}
    pipes = {}
    for name, changes in variants.items():
        pipes[name], theirs = multiprocessing.get_context("spawn").Pipe()
        config = worker_config({**core.parameters, **changes})
        multiprocessing.get_context("spawn").Process(
            target=serve, args=(config, theirs), daemon=True
        ).start()
        pipes[name].recv()
    rounds = [measure_round(pipes, arguments, seed) for seed in range(arguments.rounds + 1)][1:]
    for pipe in pipes.values():
        pipe.send(None)
    report(rounds, as_json=arguments.json)


def measure_round(
    pipes: dict[str, Connection], arguments: argparse.Namespace, seed: int
) -> dict[str, dict[str, float]]:
    """Measure all variants with the same new prompts, in an order that changes with the round."""
    rng = np.random.default_rng(seed)
    shape = (arguments.requests, arguments.input_tokens)
    prompts = rng.integers(100, 40_000, shape).tolist()
    names = list(pipes)
    results = {}
    for name in names[seed % len(names) :] + names[: seed % len(names)]:
        pipes[name].send((prompts, arguments.output_tokens, arguments.streams))
        results[name] = pipes[name].recv()
    return {name: results[name] for name in names}


def report(rounds: list[dict[str, dict[str, float]]], *, as_json: bool) -> None:
    """Print the medians over the rounds."""
    if as_json:
        print(json.dumps(rounds, indent=2))
        return
    print(f"{'':<40} {'req/s':>7} {'ratio':>6} {'first token':>12} {'pause p99':>10}")
    for name in rounds[0]:
        median = {
            key: statistics.median(each[name][key] for each in rounds) for key in rounds[0][name]
        }
        ratio = statistics.median(
            each[name]["requests_per_s"] / each[DEFAULTS]["requests_per_s"] for each in rounds
        )
        print(
            f"{name:<40} {median['requests_per_s']:>7.2f} {ratio:>6.3f} "
            f"{median['first_token_s']:>10.2f} s {median['pause_p99_s'] * 1000:>7.0f} ms"
        )


if __name__ == "__main__":
    main()
