"""Serve the GPU check's models behind Triton, and measure the server."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from cpu import cpu_seconds, watching
from gpu_check import Check, prompt_of
from gpu_models import text_of, write_config
from messages import add, count_tokens
from tritonclient.grpc import service_pb2

from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
from trtllm_serve_cli.bench.model.arrivals import AllAtOnce, AtConcurrency
from trtllm_serve_cli.bench.model.served_model import Target
from trtllm_serve_cli.bench.run.benchmark import run_benchmark
from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.client.transport.over_grpc import connect
from trtllm_serve_cli.importing.declaration import (
    Declaration,
    EngineSection,
    ModelSection,
    RepositorySection,
)
from trtllm_serve_cli.importing.importer import import_model
from trtllm_serve_cli.launch.planning.local_plan import plan_for_this_machine
from trtllm_serve_cli.launch.servers.running import RunningServer
from trtllm_serve_cli.launch.supervisor.lifecycle import launch
from trtllm_serve_cli.launch.supervisor.stopping import stop_server
from trtllm_serve_cli.metrics.fetch import fetch_metrics
from trtllm_serve_cli.metrics.parse import parse_metrics
from trtllm_serve_cli.metrics.summary import summarize
from trtllm_serve_cli.sizing.gpus import find_gpus

PORTS = {"http_port": 8170, "grpc_port": 8171, "metrics_port": 8172, "openai_port": 8174}


@contextlib.contextmanager
def served(
    check: Check, folder: Path, tp: int = 1, more_parameters: Mapping[str, str] | None = None
) -> Iterator[RunningServer]:
    """Import and serve a checkpoint."""
    import_checkpoint(check, folder, tp, more_parameters=more_parameters)
    with launched(check) as server:
        yield server


def import_checkpoint(
    check: Check,
    folder: Path,
    tp: int = 1,
    *,
    max_lora_rank: int | None = None,
    more_parameters: Mapping[str, str] | None = None,
) -> None:
    """Import a checkpoint as the model `gpu-check`. `max_lora_rank` enables LoRA adapters."""
    sizes = check.sizes
    has_dummy_weights = folder != check.small
    parameters = {
        "engine_python": check.python,
        "kv_cache_free_gpu_mem_fraction": str(check.gpu_memory),
    }
    if check.instances is not None:
        parameters["bls_instance_count"] = str(check.instances)
    dummy = {"load_format": "dummy"} if has_dummy_weights else {}
    parameters["vllm_args"] = json.dumps(check.vllm_args | dummy)
    parameters.update(more_parameters or {})
    declaration = Declaration(
        ModelSection("gpu-check", f"local:{folder}"),
        EngineSection("vllm"),
        EngineOptions(
            tp=tp, dtype="bfloat16" if has_dummy_weights else "float16",
            max_batch_size=sizes.max_batch_size, max_num_tokens=sizes.max_num_tokens,
            max_seq_len=check.context_of(folder), max_lora_rank=max_lora_rank,
        ),
        RepositorySection(parameters=parameters),
    )  # fmt: skip
    import_model(declaration, check.home, force=True)


@contextlib.contextmanager
def launched(check: Check, **options: Any) -> Iterator[RunningServer]:
    """Serve the imported model, with more options of `tllm start`."""
    settings = {**PORTS, "timeout_s": 400.0, **options}
    plan = plan_for_this_machine(check.home, ["gpu-check"], settings)
    server = launch(plan, on_progress=lambda loading: None)
    try:
        yield server
    finally:
        stop_server(server)


def measure_burst(check: Check, server: RunningServer) -> dict[str, Any]:
    """Measure `tllm bench token-norm-dist` with all requests sent together, and the CPU use."""
    settings = BenchmarkSettings(
        TokenNormDist(),
        AllAtOnce(),
        check.sizes.num_requests,
        num_warmup_requests=32,
    )
    with watching(server) as seen:
        before, started_s = cpu_seconds(server), time.perf_counter()
        result = run_benchmark(settings, [Target(server.endpoint.grpc)])
        duration_s = time.perf_counter() - started_s
        after = cpu_seconds(server)
    summary = result.summary
    cores = {name: (after[name] - before.get(name, 0.0)) / duration_s for name in after}
    return {
        "requests_per_s": summary.rates["completed_requests_per_s"],
        "tokens_per_s": summary.rates["output_tokens_per_s"],
        "num_tokens": summary.num_output_tokens,
        "num_failed": summary.num_failed,
        "errors": result.error_messages[:3],
        "cores": dict(sorted(cores.items(), key=lambda each: -each[1])),
        "gpus": max(seen, key=lambda gpus: gpus[0]["utilization"] or 0, default=[]),
    }


def measure_alone(check: Check, server: RunningServer) -> dict[str, Any]:
    """Measure a stream of 200 tokens in, 300 out, as text through `tensorrt_llm_bls`."""
    times: dict[str, list[float]] = {"ttft_s": [], "duration_s": []}
    with connect(server.endpoint.grpc) as stub:
        for turn in range(check.sizes.repeats + 1):
            request = plan_text_request(text_of([turn + 3, 9, *prompt_of(check, 200)[2:]]), 300)
            started_s = time.perf_counter()
            pieces = [
                (time.perf_counter() - started_s, count)
                for answer in stub.ModelStreamInfer(iter([request]))
                if (count := count_tokens(answer))
            ]
            assert sum(count for _, count in pieces) == 300, pieces[-3:]
            if turn:
                times["ttft_s"].append(pieces[0][0])
                times["duration_s"].append(pieces[-1][0])
    return summarize_alone(times, 300)


def plan_text_request(text: str, num_tokens: int) -> Any:
    """Return a streaming request with a fixed length, which an end token cannot shorten."""
    encoded = text.encode()
    request = service_pb2.ModelInferRequest(model_name="tensorrt_llm_bls")
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
    request.raw_input_contents.append(len(encoded).to_bytes(4, "little") + encoded)
    for name in ("max_tokens", "min_tokens"):
        add(request, name, "INT32", np.array([[num_tokens]], np.int32))
    for name in ("stream", "return_num_output_tokens"):
        add(request, name, "BOOL", np.array([[True]]))
    return request


def measure_latency(check: Check, server: RunningServer) -> dict[str, Any]:
    """Measure 200 tokens in, 100 out, one request in flight, as in upstream's documentation."""
    settings = BenchmarkSettings(
        TokenNormDist(200, 0, 100, 0), AtConcurrency(1), check.sizes.repeats,
        stream=True,
    )  # fmt: skip
    summary = run_benchmark(settings, [Target(server.endpoint.grpc)]).summary
    latency, ttft = summary.times["request_latency"], summary.times["ttft"]
    assert latency and ttft
    return {"p50_ms": latency.p50_ms, "ttft_p50_ms": ttft.p50_ms}


def measure_streaming(check: Check, server: RunningServer) -> dict[str, Any]:
    """Measure concurrent streams through `tensorrt_llm`, and count lost tokens."""
    sizes = check.sizes
    settings = BenchmarkSettings(
        TokenNormDist(128, 0, sizes.stream_tokens, 0),
        AtConcurrency(sizes.in_flight), sizes.num_streams,
        num_warmup_requests=sizes.in_flight, stream=True,
    )  # fmt: skip
    before, started_s = cpu_seconds(server), time.perf_counter()
    result = run_benchmark(settings, [Target(server.endpoint.grpc)])
    duration_s = time.perf_counter() - started_s
    after = cpu_seconds(server)
    summary = result.summary
    times = {name: summary.times[name] for name in ("itl", "tpot", "ttft")}
    assert all(times.values())
    num_chunks = times["itl"].num_samples + summary.num_completed
    return {
        "num_lost": sizes.num_streams * sizes.stream_tokens - summary.num_output_tokens,
        "errors": result.error_messages[:3],
        "tokens_per_s": summary.rates["output_tokens_per_s"],
        "tokens_per_response": summary.num_output_tokens / num_chunks,
        **{name: asdict(each) for name, each in times.items()},
        "cores": {name: (after[name] - before.get(name, 0.0)) / duration_s for name in after},
    }


def measure_memory(check: Check, server: RunningServer) -> dict[str, Any]:
    """Return the plan for this GPU, and the memory use in the server's metrics."""
    summary = summarize(parse_metrics(fetch_metrics(server.endpoint.metrics), time.monotonic()))
    (engine,) = summary.engines
    held = {"gpus": [asdict(gpu) for gpu in summary.host.gpus], "engine": asdict(engine)}
    gpus = find_gpus()
    card = ["--gpu", gpus[0].shown_as] if gpus else ["--gpu", "h200"]
    sizes = check.sizes
    config = write_config(check.work / "config", sizes.shape)
    planned = subprocess.run(
        (sys.executable, "-m", "trtllm_serve_cli.cli.main", "plan", "-m", "gpu-check",
         "-s", f"local:{config}", *card, "--num-gpus", "1", "--input-len", "128",
         "--output-len", "20", "--max-seq-len", str(sizes.max_seq_len), "--max-batch-size",
         str(sizes.max_batch_size), "--max-num-tokens", str(sizes.max_num_tokens), "--json"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    plan = json.loads(planned.stdout) if planned.returncode == 0 else planned.stderr
    return {"held": held, "plan": plan}


def summarize_alone(times: dict[str, list[float]], num_tokens: int) -> dict[str, float]:
    return {
        "tokens_per_s": num_tokens / statistics.median(times["duration_s"]),
        "ttft_ms": statistics.median(times["ttft_s"]) * 1e3,
    }
