"""Measure how much of the engine's speed remains behind Triton.

    python benchmarks/serving.py [--rounds 5] [--requests 64] [--json]

Serves the demo model, and runs the same requests (128 tokens in, 20 out, all sent together) in
turns over gRPC to `tensorrt_llm`, and in OpenVINO GenAI's pipeline in a separate process, with the
same engine and scheduler settings. Prints requests per second of both and the ratio of each round;
the result is the median of the ratios. Only one of the two is active at a time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
from trtllm_serve_cli.bench.model.arrivals import AllAtOnce
from trtllm_serve_cli.bench.model.served_model import Target
from trtllm_serve_cli.bench.run.benchmark import run_benchmark
from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist
from trtllm_serve_cli.importing.declaration import Declaration, ModelSection
from trtllm_serve_cli.importing.importer import import_model
from trtllm_serve_cli.launch.planning.local_plan import plan_for_this_machine
from trtllm_serve_cli.launch.supervisor.lifecycle import launch
from trtllm_serve_cli.launch.supervisor.stopping import stop_server
from trtllm_serve_cli.paths import find_home

PROMPT_TOKENS, OUTPUT_TOKENS = 128, 20


def serve_directly(engine_dir: Path, settings: dict[str, int], pipe: Connection) -> None:
    """Run batches in OpenVINO GenAI: receive prompts, and send the duration in seconds."""
    import openvino
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    for name, value in settings.items():
        setattr(scheduler, name, value)
    scheduler.enable_prefix_caching = True
    pipeline = openvino_genai.ContinuousBatchingPipeline(engine_dir, scheduler, "CPU")
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos = OUTPUT_TOKENS, True
    pipe.send("ready")
    while (prompts := pipe.recv()) is not None:
        tensors = [openvino.Tensor(np.array([ids], dtype=np.int64)) for ids in prompts]
        started_s = time.perf_counter()
        results = pipeline.generate(tensors, [config] * len(tensors))
        took_s = time.perf_counter() - started_s
        assert all(len(each.m_generation_ids[0]) == OUTPUT_TOKENS for each in results)
        pipe.send(took_s)


def measure_served(address: str, num_requests: int, seed: int) -> float:
    """Return the requests per second over gRPC."""
    settings = BenchmarkSettings(
        workload=TokenNormDist(PROMPT_TOKENS, 0, OUTPUT_TOKENS, 0),
        load=AllAtOnce(),
        num_requests=num_requests,
        seed=seed,
    )
    result = run_benchmark(settings, [Target(address)])
    assert not result.error_messages, result.error_messages
    return float(result.summary.rates["completed_requests_per_s"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    home = find_home()
    rendered, _ = import_model(Declaration(ModelSection("demo")), home)
    plan = plan_for_this_machine(
        home, ["demo"], {"http_port": 8100, "grpc_port": 8101, "metrics_port": 8102}
    )
    served_config = next(model for model in rendered.models if model.name == "tensorrt_llm")
    settings = {
        "num_kv_blocks": -(-int(served_config.parameters["max_tokens_in_paged_kv_cache"]) // 32),
        "max_num_seqs": int(served_config.parameters["max_num_seqs"]),
        "max_num_batched_tokens": int(served_config.parameters["max_num_tokens"]),
    }
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    direct = multiprocessing.get_context("spawn").Process(
        target=serve_directly, args=(rendered.engine.path, settings, theirs), daemon=True
    )
    direct.start()
    ours.recv()
    server = launch(plan, on_progress=lambda loading: None)
    try:
        rounds = [
            measure_round(server.endpoint.grpc, ours, arguments.requests, seed)
            for seed in range(arguments.rounds + 1)
        ][1:]
    finally:
        stop_server(server)
        ours.send(None)
        direct.join()
    report(rounds, as_json=arguments.json)


def measure_round(address: str, pipe: Connection, num_requests: int, seed: int) -> dict[str, float]:
    """Measure both in alternating order, with new prompts, which are not cached."""
    rng = np.random.default_rng(10_000 + seed)
    prompts = rng.integers(100, 40_000, (num_requests, PROMPT_TOKENS)).tolist()
    served = measure_served(address, num_requests, seed) if seed % 2 else 0.0
    pipe.send(prompts)
    direct = num_requests / pipe.recv()
    served = served or measure_served(address, num_requests, seed)
    return {"served": served, "direct": direct, "ratio": served / direct}


def report(rounds: list[dict[str, float]], *, as_json: bool) -> None:
    """Print the rounds and the median of their ratios."""
    ratio = statistics.median(each["ratio"] for each in rounds)
    result: dict[str, Any] = {
        "machine": f"{platform.machine()}, {multiprocessing.cpu_count()} cores",
        "rounds": rounds,
        "median_ratio": ratio,
    }
    if as_json:
        print(json.dumps(result, indent=2))
        return
    print(f"{'round':>5} {'served':>8} {'direct':>8} {'ratio':>6}   (requests/s)")
    for number, each in enumerate(rounds, 1):
        print(f"{number:>5} {each['served']:>8.2f} {each['direct']:>8.2f} {each['ratio']:>6.3f}")
    print(f"median ratio {ratio:.3f} on {result['machine']}")


if __name__ == "__main__":
    main()
