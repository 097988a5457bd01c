"""Measure how many streamed tokens Triton's Python stubs can transfer.

    python benchmarks/streams.py [--model tensorrt_llm_bls] [--front-ends 1 2 4] [--in-flight 256]
                                 [--step-ms 19] [--seconds 20] [--source local:DIR] [--json]

Serves a simulated engine, whose steps generate a token for each stream, with one, two and four
instances of the model that streams them: `tensorrt_llm` with token ids, or a text model. A stub
that cannot send each token separately combines the tokens of several steps: gaps between responses
and tokens per response increase. Each row ends with the processors that each part used.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from typing import Any

from cpu import CLIENT, WORKER, cpu_by_process
from simulated import DEMO, import_simulated

from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
from trtllm_serve_cli.bench.model.arrivals import AtConcurrency
from trtllm_serve_cli.bench.model.served_model import Target
from trtllm_serve_cli.bench.run.benchmark import run_benchmark
from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist
from trtllm_serve_cli.bench.workloads.words import RandomWords
from trtllm_serve_cli.launch.planning.local_plan import plan_for_this_machine
from trtllm_serve_cli.launch.supervisor.lifecycle import launch
from trtllm_serve_cli.launch.supervisor.stopping import stop_server
from trtllm_serve_cli.paths import Home, find_home

PORTS = {"http_port": 8120, "grpc_port": 8121, "metrics_port": 8122}
NUM_TOKENS = 200
CORE = "tensorrt_llm"


def measure(home: Home, num_front_ends: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure the throughput of `num_front_ends` stubs."""
    model = arguments.model
    name = f"streams-{num_front_ends}"
    count = "tensorrt_llm_instance_count" if model == CORE else "bls_instance_count"
    parts = ("tritonserver", f"stub of {model}", WORKER, CLIENT)
    import_simulated(
        home,
        name,
        arguments.step_ms,
        source=arguments.source,
        max_batch_size=arguments.in_flight,
        parameters={count: str(num_front_ends), "instances_share_engine": "true"},
    )
    rounds = max(2, round(arguments.seconds * 1000 / arguments.step_ms / NUM_TOKENS))
    settings = BenchmarkSettings(
        (TokenNormDist if model == CORE else RandomWords)(128, 0, NUM_TOKENS, 0),
        AtConcurrency(arguments.in_flight),
        rounds * arguments.in_flight,
        num_warmup_requests=arguments.in_flight,
        stream=True,
        input_kind="tokens" if model == CORE else "text",
    )
    plan = plan_for_this_machine(home, [name], PORTS)
    server = launch(plan, on_progress=lambda loading: None)
    try:
        before, started_s = cpu_by_process(server), time.perf_counter()
        result = run_benchmark(settings, [Target(server.endpoint.grpc, model)])
        duration_s = time.perf_counter() - started_s
        after = cpu_by_process(server)
    finally:
        stop_server(server)
    summary = result.summary
    itl = summary.times["itl"]
    assert itl is not None and not summary.num_failed, result.error_messages[:3]
    return {
        "front_ends": num_front_ends,
        "lost": rounds * arguments.in_flight * NUM_TOKENS - summary.num_output_tokens,
        "tokens_per_s": summary.rates["output_tokens_per_s"],
        "tokens_per_response": summary.num_output_tokens
        / (itl.num_samples + summary.num_completed),
        "itl_p50_ms": itl.p50_ms,
        "itl_p99_ms": itl.p99_ms,
        "cores": {
            part: [round((cpu_s - before.get(part, {}).get(pid, 0.0)) / duration_s, 2)
                   for pid, cpu_s in sorted(by_pid.items())]
            for part, by_pid in after.items() if part in parts
        },
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=CORE, help="tensorrt_llm, ensemble or tensorrt_llm_bls")
    parser.add_argument("--front-ends", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--step-ms", type=float, default=19)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--source", default=DEMO)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    home = find_home()
    rows = [measure(home, number, arguments) for number in arguments.front_ends]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores; {arguments.in_flight} streams, "
          f"a step of {arguments.step_ms:g} ms")  # fmt: skip
    print("front ends  tokens/s  lost  tokens/response  gap p50 ms  gap p99 ms")
    for row in rows:
        print(f"{row['front_ends']:10}  {row['tokens_per_s']:8.0f}  {row['lost']:4}  "
              f"{row['tokens_per_response']:15.2f}  {row['itl_p50_ms']:10.1f}  "
              f"{row['itl_p99_ms']:10.1f}   {row['cores']}")  # fmt: skip


if __name__ == "__main__":
    main()
