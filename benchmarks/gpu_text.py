"""Compare streams of text through Triton with vLLM's server on the same GPU.

Both servers run the same checkpoint with the same engine arguments, and share the GPU's memory. The
client is the same, and the loads alternate. The text models have the default number of instances.
After the loads, the time to the first token of single streams is measured: each turn sends one
request to each server, and starts with another server than the turn before.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from cpu import cpu_seconds
from gpu_check import FIRST_TOKEN, Check
from gpu_gateway import HALF_OF_MEMORY, FrontEnd, find_gateway
from gpu_models import text_of
from gpu_served import PORTS, served
from gpu_vllm import RAW_PORT, serving

from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
from trtllm_serve_cli.bench.model.arrivals import AtConcurrency
from trtllm_serve_cli.bench.model.served_model import OpenAITarget, Target
from trtllm_serve_cli.bench.run.benchmark import run_benchmark
from trtllm_serve_cli.bench.workloads.dataset import Dataset, Entry, Lengths, as_text
from trtllm_serve_cli.client.transport.openai.endpoint import OpenAIEndpoint, parse_base_url
from trtllm_serve_cli.launch.servers.running import RunningServer

_TEXT_MODELS = ("ensemble", "tensorrt_llm_bls", "gpu-check")
_PROMPT_LENGTH = 128
# Turns in which single streams are measured, and their tokens.
_NUM_TURNS = 60
_ALONE_TOKENS = 4
# Processes of the client, so that it does not limit the streams.
_NUM_WORKERS = 4


@dataclass(frozen=True)
class Front:
    """A model to measure. `cpu_s` returns the CPU time of its server without engine and client."""

    name: str
    target: Target | OpenAITarget
    cpu_s: Callable[[], float]


def check_text(check: Check) -> dict[str, Any]:
    """Measure many streams and single streams of each text model and of vLLM's server in turns."""
    half = replace(check, gpu_memory=HALF_OF_MEMORY)
    rows: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(served(half, check.grouped))
        fronts = [_text_model(server, model) for model in _TEXT_MODELS]
        if not check.is_rehearsal:
            fronts.append(_raw_server(stack.enter_context(serving(half, check.grouped))))
            fronts.append(_gateway(server))
        for round_number in range(check.sizes.chat_rounds):
            for index, front in enumerate(fronts):
                seed = (round_number, index)
                rows.append({"server": front.name, **_measure_streams(check, front, seed)})
                check.found["text"] = {"rows": rows, "medians": _medians(rows)}
                check.save()
        check.found["text"]["first_tokens"] = _measure_first_tokens(check, fronts)
        check.save()
    return check.found["text"]


def _text_model(server: RunningServer, model: str) -> Front:
    def cpu_s() -> float:
        # Each text model has its own stubs; Triton and the engine worker serve all of them.
        parts = ("tritonserver", "engine worker", f"stub of {model}")
        used = cpu_seconds(server)
        return sum(used.get(part, 0.0) for part in parts)

    return Front(model, Target(server.endpoint.grpc, model), cpu_s)


def _raw_server(process_id: int) -> Front:
    raw = FrontEnd(RAW_PORT, "m", process_id)
    return Front("vllm serve", _openai_target(RAW_PORT, "m"), raw.cpu_seconds)


def _gateway(server: RunningServer) -> Front:
    gateway = FrontEnd(PORTS["openai_port"], "gpu-check", find_gateway(server))
    target = _openai_target(PORTS["openai_port"], "gpu-check")
    return Front("gateway", target, gateway.cpu_seconds)


def _openai_target(port: int, model: str) -> OpenAITarget:
    base_url = parse_base_url(f"http://127.0.0.1:{port}")
    return OpenAITarget(OpenAIEndpoint(base_url), model, "completions")


def _measure_streams(check: Check, front: Front, seed: tuple[int, ...]) -> dict[str, Any]:
    sizes = check.sizes
    settings = BenchmarkSettings(
        _prompts(check, seed, sizes.num_streams, sizes.stream_tokens),
        AtConcurrency(sizes.in_flight), sizes.num_streams,
        num_warmup_requests=sizes.in_flight, stream=True, input_kind="text",
        num_workers=_NUM_WORKERS,
    )  # fmt: skip
    before_s, started_s = front.cpu_s(), time.perf_counter()
    result = run_benchmark(settings, [front.target])
    cores = (front.cpu_s() - before_s) / (time.perf_counter() - started_s)
    summary = result.summary
    itl, ttft = summary.times["itl"], summary.times["ttft"]
    if itl is None or ttft is None:
        return {"errors": result.error_messages[:3]}
    num_responses = itl.num_samples + summary.num_completed
    return {
        "num_lost": sizes.num_streams * sizes.stream_tokens - summary.num_output_tokens,
        "tokens_per_s": summary.rates["output_tokens_per_s"],
        "tokens_per_response": summary.num_output_tokens / num_responses,
        "itl_p50_ms": itl.p50_ms, "itl_p99_ms": itl.p99_ms,
        "ttft_p50_ms": ttft.p50_ms, "cores": cores,
    }  # fmt: skip


def _measure_first_tokens(check: Check, fronts: list[Front]) -> list[dict[str, Any]]:
    """Return the percentiles of the time to the first token of single streams, by server."""
    times_ms: dict[str, list[float]] = {front.name: [] for front in fronts}
    for turn in range(_NUM_TURNS):
        for position in range(len(fronts)):
            index = (turn + position) % len(fronts)
            time_ms = _measure_alone(check, fronts[index], (turn, index, 1))
            if time_ms is not None:
                times_ms[fronts[index].name].append(time_ms)
    return [
        {
            "server": name,
            "num_streams": len(times),
            **{f"p{rank}_ms": float(np.percentile(times, rank)) for rank in (10, 50, 90)},
        }
        for name, times in times_ms.items()
        if times
    ]


def _measure_alone(check: Check, front: Front, seed: tuple[int, ...]) -> float | None:
    """Return the time to the first token of a stream, which follows another on the connection."""
    settings = BenchmarkSettings(
        _prompts(check, seed, 2, _ALONE_TOKENS),
        AtConcurrency(1), 1, num_warmup_requests=1, stream=True, input_kind="text",
    )  # fmt: skip
    ttft = run_benchmark(settings, [front.target]).summary.times["ttft"]
    return ttft.p50_ms if ttft else None


def _prompts(check: Check, seed: tuple[int, ...], number: int, num_tokens: int) -> Dataset:
    """Return prompts that no other measurement uses, because the engine caches prefixes."""
    rng = np.random.default_rng(seed)
    vocab_size = check.sizes.grouped_shape["vocab_size"]
    ids = rng.integers(FIRST_TOKEN, vocab_size, (number, _PROMPT_LENGTH)).tolist()
    entries = [Entry(str(index), text_of(each)) for index, each in enumerate(ids)]
    return as_text("random words", entries, Lengths(num_output_tokens=num_tokens))


def _medians(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the median of each figure over the rounds, for each server."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["server"], []).append(row)
    return [
        {"server": server}
        | {
            name: statistics.median(row[name] for row in group)
            for name in group[0]
            if isinstance(group[0][name], (int, float)) and all(name in row for row in group)
        }
        for server, group in groups.items()
    ]


def table(medians: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a table with the medians."""
    lines = [
        f"{'model or server':18} tokens/s  lost  tok/response    ITL p50 / p99 ms  TTFT p50 ms  "
        "cores"
    ]
    for row in medians:
        if "tokens_per_s" not in row:
            lines.append(f"{row['server']:18} failed")
            continue
        lines.append(
            f"{row['server']:18} {row['tokens_per_s']:8.0f}  {row['num_lost']:4.0f}  "
            f"{row['tokens_per_response']:12.3f}  {row['itl_p50_ms']:9.2f} / "
            f"{row['itl_p99_ms']:6.1f}  {row['ttft_p50_ms']:11.1f}  {row['cores']:5.2f}"
        )
    return lines


def first_token_table(first_tokens: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a table with the times to the first token of single streams."""
    lines = [f"{'model or server':18} streams  TTFT p10 / p50 / p90 ms"]
    for row in first_tokens:
        times = " / ".join(f"{row[f'p{rank}_ms']:.2f}" for rank in (10, 50, 90))
        lines.append(f"{row['server']:18} {row['num_streams']:7}  {times}")
    return lines
