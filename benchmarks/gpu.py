"""The whole stack on a machine with a GPU, with vLLM called directly beside it.

    python benchmarks/gpu.py [--engine-python PY] [--work DIR] [--only PART]... [--rehearse]

Makes a checkpoint of Llama-2-7B's shape with random weights and a small one with real files,
imports and serves them with the engine kind vllm, and measures: docs/gpu.md says what, part by
part. Each part has a time limit, and one that fails costs the others nothing. What has been seen is
in DIR/gpu.json after each part; the last thing printed is a table. `--rehearse` runs it all without
a GPU, on the stand-in of vLLM that the tests have: it finds mistakes, and its figures mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from gpu_models import LLAMA_2_7B, SMALL, text_of, write_config, write_shape, write_small
from tritonclient.grpc import service_pb2

from trtllm_serve_cli import bench, launch
from trtllm_serve_cli.build import EngineOptions
from trtllm_serve_cli.client.over_grpc import connect
from trtllm_serve_cli.declaration import (
    Declaration,
    EngineSection,
    ModelSection,
    RepositorySection,
)
from trtllm_serve_cli.importing import import_model
from trtllm_serve_cli.metrics import fetch_metrics, parse_metrics, summarize
from trtllm_serve_cli.paths import Home, find_home
from trtllm_serve_cli.sizing import find_gpus

HERE = Path(__file__).parent
REPOSITORY = HERE.parent
# Seconds; a part that takes longer is ended.
LIMITS = {"raw": 420, "greedy": 300, "served": 480, "raw_server": 300, "tp2": 480}
PORTS = {"http_port": 8170, "grpc_port": 8171, "metrics_port": 8172}
RAW_PORT = 8173
GPU_MEMORY = 0.9


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is asked; `one` are prompt and answer of a single stream, in tokens."""

    shape: dict[str, Any]
    max_batch_size: int = 1024
    max_num_tokens: int = 16384
    max_seq_len: int = 2048
    num_requests: int = 5000
    in_flight: int = 256
    num_streams: int = 1024
    stream_tokens: int = 128
    repeats: int = 7
    greedy_prompts: int = 8
    greedy_tokens: int = 32


FULL = Sizes(LLAMA_2_7B)
SHORT = Sizes(
    {**SMALL, "max_position_embeddings": 2048},
    max_batch_size=64, max_num_tokens=512, num_requests=200, in_flight=64, num_streams=128,
    stream_tokens=64, repeats=2, greedy_prompts=2,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Check:
    """One run: where it works, with which Python, and what it has found so far."""

    work: Path
    python: str
    sizes: Sizes
    is_rehearsal: bool
    instances: int
    vllm_args: dict[str, Any]
    found: dict[str, Any]

    @property
    def home(self) -> Home:
        return find_home({"TLLM_HOME": str(self.work / "home")})

    @property
    def big(self) -> Path:
        return self.work / "big"

    @property
    def small(self) -> Path:
        return self.work / "small"

    def arguments(self, folder: Path, tp: int = 1) -> dict[str, Any]:
        """vLLM's own, as our server has them."""
        sizes = self.sizes
        of_weights = (
            {"dtype": "bfloat16", "load_format": "dummy"}
            if folder == self.big
            else {"dtype": "float16"}
        )
        return {
            "model": str(folder), "tokenizer": str(folder), "tensor_parallel_size": tp,
            "max_num_seqs": sizes.max_batch_size, "max_num_batched_tokens": sizes.max_num_tokens,
            "max_model_len": self.context_of(folder), "gpu_memory_utilization": GPU_MEMORY,
            **of_weights, **self.vllm_args,
        }  # fmt: skip

    def context_of(self, folder: Path) -> int:
        return self.sizes.max_seq_len if folder == self.big else SMALL["max_position_embeddings"]


# ---------------------------------------------------------------- parts


def check_raw(check: Check) -> dict[str, Any]:
    """vLLM called directly: all at once, and one stream alone."""
    prompts, lengths = draw_burst(check)
    jobs = {
        "burst": {"kind": "burst", "prompts": prompts, "lengths": lengths},
        "alone": {"kind": "alone", "prompt": prompt_of(check, 200), "num_tokens": 300,
                  "repeats": check.sizes.repeats},
        "latency": {"kind": "alone", "prompt": prompt_of(check, 200), "num_tokens": 100,
                    "repeats": check.sizes.repeats},
    }  # fmt: skip
    raw = run_raw(check, "raw", check.arguments(check.big), jobs)
    burst = raw["burst"]
    return {
        "requests_per_s": len(prompts) / burst["duration_s"],
        "tokens_per_s": burst["num_tokens"] / burst["duration_s"],
        "num_tokens": burst["num_tokens"],
        "alone": summarize_alone(raw["alone"], 300),
        "latency_ms": statistics.median(raw["latency"]["duration_s"]) * 1e3,
    }


def check_greedy(check: Check) -> dict[str, Any]:
    """The small model's tokens: vLLM's own, and through Triton."""
    prompts = greedy_prompts(check)
    expected = raw_greedy(check, prompts, tp=1)
    with served(check, check.small) as server:
        got = ask_all(server, prompts, check.sizes.greedy_tokens)
    return {"expected": expected, **compare_tokens(expected, got)}


def check_served(check: Check) -> dict[str, Any]:
    """Everything that is measured on the large model behind Triton."""
    found: dict[str, Any] = {}
    started_s = time.perf_counter()
    with served(check, check.big) as server:
        found["ready_after_s"] = time.perf_counter() - started_s
        for name, measure in {
            "burst": measure_burst,
            "alone": measure_alone,
            "latency": measure_latency,
            "streaming": measure_streaming,
            "memory": measure_memory,
        }.items():
            # What one of them found is kept when the next fails.
            try:
                found[name] = measure(check, server)
            except Exception as error:
                traceback.print_exc()
                found[name] = {"error": f"{type(error).__name__}: {error}"}
            check.found["served"] = found
            save(check)
    return found


def check_raw_server(check: Check) -> dict[str, Any]:
    """vLLM's own server, streaming as many at once."""
    if check.is_rehearsal:
        return {"left_out": "the stand-in has no server"}
    arguments = check.arguments(check.big)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in arguments.items()]
    log = (check.work / "raw-server.log").open("wb")
    process = subprocess.Popen(
        (check.python, "-m", "vllm.entrypoints.openai.api_server", *flags,
         "--served-model-name=m", f"--port={RAW_PORT}", "--host=127.0.0.1"),
        stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=clean_environ(),
    )  # fmt: skip
    try:
        wait_for_port(RAW_PORT, process)
        return run_stream_client(check)
    finally:
        end_group(process)
        log.close()


def check_tp2(check: Check) -> dict[str, Any]:
    """Two GPUs: the small model's tokens, and how many requests of the large one."""
    if len(find_gpus()) < 2 and not check.is_rehearsal:
        return {"left_out": "one GPU"}
    prompts = greedy_prompts(check)
    known = check.found.get("greedy", {}).get("expected")
    expected = known or raw_greedy(check, prompts, tp=1)
    with served(check, check.small, tp=2) as server:
        got = ask_all(server, prompts, check.sizes.greedy_tokens)
    found: dict[str, Any] = {"greedy": compare_tokens(expected, got)}
    with served(check, check.big, tp=2) as server:
        found["burst"] = measure_burst(check, server)
    return found


PARTS: dict[str, Callable[[Check], dict[str, Any]]] = {
    "raw": check_raw,
    "greedy": check_greedy,
    "served": check_served,
    "raw_server": check_raw_server,
    "tp2": check_tp2,
}


# ---------------------------------------------------------------- measures of a server


def measure_burst(check: Check, server: launch.RunningServer) -> dict[str, Any]:
    """`tllm bench token-norm-dist`, all at once; with it, where the time goes."""
    settings = bench.BenchmarkSettings(
        bench.TokenNormDist(),
        bench.AllAtOnce(),
        check.sizes.num_requests,
        num_warmup_requests=32,
    )
    with watching(server) as seen:
        before, started_s = cpu_seconds(server), time.perf_counter()
        result = bench.run_benchmark(settings, [bench.Target(server.endpoint.grpc)])
        duration_s = time.perf_counter() - started_s
        after = cpu_seconds(server)
    summary = result.summary
    cores = {name: (after[name] - before.get(name, 0.0)) / duration_s for name in after}
    return {
        "requests_per_s": summary.completed_requests_per_s,
        "tokens_per_s": summary.output_tokens_per_s,
        "num_tokens": summary.num_output_tokens,
        "num_failed": summary.num_failed,
        "errors": result.error_messages[:3],
        "cores": dict(sorted(cores.items(), key=lambda each: -each[1])),
        "gpus": max(seen, key=lambda gpus: gpus[0]["utilization"] or 0, default=[]),
    }


def measure_alone(check: Check, server: launch.RunningServer) -> dict[str, Any]:
    """One stream of 200 in, 300 out as text through `tensorrt_llm_bls`, over one connection."""
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
    """A streaming request for so many tokens: the end token may come at any time otherwise."""
    encoded = text.encode()
    request = service_pb2.ModelInferRequest(model_name="tensorrt_llm_bls")
    for name, kind, shape, content in (
        ("text_input", "BYTES", [1, 1], len(encoded).to_bytes(4, "little") + encoded),
        ("max_tokens", "INT32", [1, 1], np.int32(num_tokens).tobytes()),
        ("min_tokens", "INT32", [1, 1], np.int32(num_tokens).tobytes()),
        ("stream", "BOOL", [1, 1], np.bool_(True).tobytes()),
        ("return_num_output_tokens", "BOOL", [1, 1], np.bool_(True).tobytes()),
    ):
        request.inputs.add(name=name, datatype=kind, shape=shape)
        request.raw_input_contents.append(content)
    return request


def count_tokens(answer: Any) -> int:
    """The new tokens that one response tells of."""
    assert not answer.error_message, answer.error_message
    reply = answer.infer_response
    for output, content in zip(reply.outputs, reply.raw_output_contents, strict=False):
        if output.name == "num_output_tokens":
            return int.from_bytes(content[:4], "little", signed=True)
    return 0


def measure_latency(check: Check, server: launch.RunningServer) -> dict[str, Any]:
    """Of 200 in, 100 out, one at a time, as upstream's document measures it."""
    settings = bench.BenchmarkSettings(
        bench.TokenNormDist(200, 0, 100, 0), bench.AtConcurrency(1), check.sizes.repeats,
        stream=True,
    )  # fmt: skip
    summary = bench.run_benchmark(settings, [bench.Target(server.endpoint.grpc)]).summary
    assert summary.request_latency and summary.ttft
    return {"p50_ms": summary.request_latency.p50_ms, "ttft_p50_ms": summary.ttft.p50_ms}


def measure_streaming(check: Check, server: launch.RunningServer) -> dict[str, Any]:
    """So many streams at once through `tensorrt_llm`; every token has to come."""
    sizes = check.sizes
    settings = bench.BenchmarkSettings(
        bench.TokenNormDist(128, 0, sizes.stream_tokens, 0),
        bench.AtConcurrency(sizes.in_flight), sizes.num_streams,
        num_warmup_requests=sizes.in_flight, stream=True,
    )  # fmt: skip
    before, started_s = cpu_seconds(server), time.perf_counter()
    result = bench.run_benchmark(settings, [bench.Target(server.endpoint.grpc)])
    duration_s = time.perf_counter() - started_s
    after = cpu_seconds(server)
    summary = result.summary
    assert summary.itl and summary.tpot and summary.ttft
    num_chunks = summary.itl.num_samples + summary.num_completed
    return {
        "num_lost": sizes.num_streams * sizes.stream_tokens - summary.num_output_tokens,
        "errors": result.error_messages[:3],
        "tokens_per_s": summary.output_tokens_per_s,
        "tokens_per_response": summary.num_output_tokens / num_chunks,
        "itl": asdict(summary.itl),
        "tpot": asdict(summary.tpot),
        "ttft": asdict(summary.ttft),
        "cores": {name: (after[name] - before.get(name, 0.0)) / duration_s for name in after},
    }


def measure_memory(check: Check, server: launch.RunningServer) -> dict[str, Any]:
    """What the plan says of this card, and what the server's own figures say."""
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


# ---------------------------------------------------------------- servers, ours and vLLM


@contextlib.contextmanager
def served(check: Check, folder: Path, tp: int = 1) -> Iterator[launch.RunningServer]:
    """A server of the checkpoint, imported for it."""
    sizes = check.sizes
    is_big = folder == check.big
    parameters = {
        "engine_python": check.python,
        "kv_cache_free_gpu_mem_fraction": str(GPU_MEMORY),
        "bls_instance_count": str(check.instances),
    }
    dummy = {"load_format": "dummy"} if is_big else {}
    parameters["vllm_args"] = json.dumps(check.vllm_args | dummy)
    asked = Declaration(
        ModelSection("gpu-check", f"local:{folder}"),
        EngineSection("vllm"),
        EngineOptions(
            tp=tp, dtype="bfloat16" if is_big else "float16",
            max_batch_size=sizes.max_batch_size, max_num_tokens=sizes.max_num_tokens,
            max_seq_len=check.context_of(folder),
        ),
        RepositorySection(parameters=parameters),
    )  # fmt: skip
    import_model(asked, check.home, force=True)
    plan = launch.plan_for_this_machine(check.home, ["gpu-check"], {**PORTS, "timeout_s": 400.0})
    server = launch.launch(plan, on_progress=lambda loading: None)
    try:
        yield server
    finally:
        launch.stop_server(server)


def ask_all(
    server: launch.RunningServer, prompts: list[list[int]], num_tokens: int
) -> list[list[int]]:
    """Greedy tokens through `tensorrt_llm`, one prompt after another."""
    return [ask_tokens(server, prompt, num_tokens) for prompt in prompts]


def ask_tokens(server: launch.RunningServer, prompt: list[int], num_tokens: int) -> list[int]:
    request = service_pb2.ModelInferRequest(model_name="tensorrt_llm")
    for name, kind, value in (
        ("input_ids", "INT32", np.array([prompt], np.int32)),
        ("input_lengths", "INT32", np.array([[len(prompt)]], np.int32)),
        ("request_output_len", "INT32", np.array([[num_tokens]], np.int32)),
        ("exclude_input_in_output", "BOOL", np.array([[True]])),
    ):
        request.inputs.add(name=name, datatype=kind, shape=value.shape)
        request.raw_input_contents.append(value.tobytes())
    with connect(server.endpoint.grpc) as stub:
        for answer in stub.ModelStreamInfer(iter([request])):
            assert not answer.error_message, answer.error_message
            reply = answer.infer_response
            for output, content in zip(reply.outputs, reply.raw_output_contents, strict=True):
                if output.name == "output_ids":
                    return [int(token) for token in np.frombuffer(content, np.int32)]
    raise AssertionError("no tokens came")


def run_raw(
    check: Check, name: str, arguments: dict[str, Any], jobs: dict[str, Any]
) -> dict[str, Any]:
    """What vLLM's own Python makes of the jobs."""
    work, result = check.work / f"{name}.jobs.json", check.work / f"{name}.result.json"
    work.write_text(json.dumps({"arguments": arguments, "jobs": jobs}))
    result.unlink(missing_ok=True)
    log = check.work / f"{name}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            (check.python, str(HERE / "gpu_raw.py"), str(work), str(result)),
            stdout=file, stderr=subprocess.STDOUT, start_new_session=True, env=clean_environ(),
        )  # fmt: skip
        try:
            code = process.wait()
        finally:
            end_group(process)
    if code:
        last = log.read_text(errors="replace").splitlines()[-15:]
        raise RuntimeError("\n".join([f"exit code {code}; {log} ends with", *last]))
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def raw_greedy(check: Check, prompts: list[list[int]], tp: int) -> list[list[int]]:
    job = {"kind": "greedy", "prompts": prompts, "num_tokens": check.sizes.greedy_tokens}
    found = run_raw(check, f"greedy-tp{tp}", check.arguments(check.small, tp), {"greedy": job})
    tokens: list[list[int]] = found["greedy"]["tokens"]
    return tokens


def run_stream_client(check: Check) -> dict[str, Any]:
    sizes = check.sizes
    rng = np.random.default_rng(7)
    warmup, measured = (
        rng.integers(3, sizes.shape["vocab_size"], (count, 128)).tolist()
        for count in (sizes.in_flight, sizes.num_streams)
    )
    common = {"kind": "stream", "url": f"http://127.0.0.1:{RAW_PORT}", "model": "m",
              "num_tokens": sizes.stream_tokens, "concurrency": sizes.in_flight}  # fmt: skip
    jobs = {"warmup": {**common, "prompts": warmup}, "streaming": {**common, "prompts": measured}}
    found = run_raw(check, "raw-stream", {}, jobs)["streaming"]
    gaps_ms = np.concatenate([np.diff(each["chunk_s"]) for each in found["records"]]) * 1e3
    num_tokens = sum(each["num_tokens"] for each in found["records"])
    return {
        "tokens_per_s": num_tokens / found["duration_s"],
        "num_lost": sizes.num_streams * sizes.stream_tokens - num_tokens,
        "tokens_per_response": num_tokens / (gaps_ms.size + len(found["records"])),
        "itl": {f"p{q}_ms": float(np.percentile(gaps_ms, q)) for q in (50, 90, 99)},
    }


# ---------------------------------------------------------------- small things


def draw_burst(check: Check) -> tuple[list[list[int]], list[int]]:
    """The requests that `tllm bench token-norm-dist` sends with the seed 0."""
    rng = np.random.default_rng(0).spawn(3)[1]
    vocab_size = check.sizes.shape["vocab_size"]
    specs = bench.TokenNormDist().draw(check.sizes.num_requests, vocab_size, rng)
    return [each.input_ids.tolist() for each in specs], [each.num_output_tokens for each in specs]


def prompt_of(check: Check, length: int) -> list[int]:
    rng = np.random.default_rng(length)
    return [int(each) for each in rng.integers(3, check.sizes.shape["vocab_size"], length)]


def greedy_prompts(check: Check) -> list[list[int]]:
    rng = np.random.default_rng(1)
    shape = (check.sizes.greedy_prompts, 64)
    prompts: list[list[int]] = rng.integers(3, SMALL["vocab_size"], shape).tolist()
    return prompts


def compare_tokens(expected: list[list[int]], got: list[list[int]]) -> dict[str, Any]:
    """How many prompts have the same tokens, and up to where the others agree."""
    agree = [
        next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
        if len(one) == len(other)
        else 0
        for one, other in zip(expected, got, strict=True)
    ]
    return {
        "num_prompts": len(expected),
        "num_equal": sum(one == other for one, other in zip(expected, got, strict=True)),
        "agree_up_to": agree,
    }


def summarize_alone(times: dict[str, list[float]], num_tokens: int) -> dict[str, float]:
    return {
        "tokens_per_s": num_tokens / statistics.median(times["duration_s"]),
        "ttft_ms": statistics.median(times["ttft_s"]) * 1e3,
    }


def cpu_seconds(server: launch.RunningServer) -> dict[str, float]:
    """CPU time so far of this process, Triton, its stubs, and the engine's processes."""
    supervisor = psutil.Process(server.state.supervisor_pid)
    seconds = {"client (this process)": _cpu_of(psutil.Process())}
    for process in supervisor.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            part = part_of(process)
            seconds[part] = seconds.get(part, 0.0) + _cpu_of(process)
    return seconds


def part_of(process: psutil.Process) -> str:
    command = process.cmdline()
    if process.name().startswith("triton_python_b"):
        return f"stub of {Path(command[1]).parent.parent.name}"
    if command and command[0].startswith("VLLM"):
        return command[0].split()[0]
    if any(word.endswith(".worker") for word in command[:4]):
        parent = process.parent()
        is_child = parent is not None and any(w.endswith(".worker") for w in parent.cmdline()[:4])
        return "engine's own processes" if is_child else "engine worker"
    return process.name()


def _cpu_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextlib.contextmanager
def watching(server: launch.RunningServer) -> Iterator[list[list[dict[str, Any]]]]:
    """The GPUs as the server's metrics tell of them, about once a second."""
    seen: list[list[dict[str, Any]]] = []
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(1.0):
            page = parse_metrics(fetch_metrics(server.endpoint.metrics), time.monotonic())
            if gpus := [asdict(gpu) for gpu in summarize(page).host.gpus]:
                seen.append(gpus)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


def clean_environ() -> dict[str, str]:
    """Without this program's packages, which vLLM's Python has its own of."""
    return {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Until the server answers its health check; the part's limit ends a long wait."""
    import urllib.request

    while process.poll() is None:
        health = f"http://127.0.0.1:{port}/health"
        with contextlib.suppress(OSError), urllib.request.urlopen(health, timeout=2):
            return
        time.sleep(0.5)
    raise RuntimeError(f"vLLM's server ended with code {process.returncode}")


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started."""
    for number, patience_s in ((signal.SIGTERM, 20), (signal.SIGKILL, 5)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)


class TimeIsUp(SystemExit):
    """A part has taken longer than it may.

    No `Exception`: what is under way would take that for a failure of its own, and go on without a
    limit. From a callback, an event loop passes only the likes of `SystemExit` on.
    """


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise `TimeIsUp` in what takes longer."""

    def stop(*_: object) -> None:
        raise TimeIsUp(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def save(check: Check) -> None:
    (check.work / "gpu.json").write_text(json.dumps(check.found, indent=1))


def rehearsal_python(work: Path) -> str:
    """A Python that takes the tests' stand-in for vLLM."""
    script = work / "python3"
    stand_in = REPOSITORY / "tests" / "runtime" / "stand_in"
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{stand_in}" exec {sys.executable} "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


# ---------------------------------------------------------------- the table


def report(found: dict[str, Any]) -> str:
    """What was seen, beside what was wanted."""
    rows = [("what", "seen", "beside it", "wanted"), *_rows(found)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    lines.insert(1, "-" * max(map(len, lines)))
    for title, cores in (
        ("CPU cores in use, all at once", _get(found, "served.burst.cores")),
        ("CPU cores in use, streaming", _get(found, "served.streaming.cores")),
    ):
        if cores:
            lines += ["", title, *(f"  {name:<28} {used:6.2f}" for name, used in cores.items())]
    failed = list(_errors(found))
    return "\n".join([*lines, *(["", "failed or left out:", *failed] if failed else [])])


def _errors(found: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, each in found.items():
        if isinstance(each, dict):
            yield from _errors(each, f"{path}{name}.")
        elif name in ("error", "left_out"):
            yield f"{path.rstrip('.')}: {each}"


def _rows(found: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    def row(what: str, seen: str, beside: str = "", wanted: str = "", form: str = ".1f") -> Any:
        values = [_get(found, path) for path in (seen, beside) if path]
        shown = [f"{value:{form}}" if isinstance(value, (int, float)) else "-" for value in values]
        ratio = ""
        if len(values) == 2 and all(isinstance(each, (int, float)) and each for each in values):
            ratio = f" ({values[0] / values[1]:.3f})"
        return what, shown[0], (shown[1] + ratio if beside else ""), wanted

    yield row("all at once, requests/s", "served.burst.requests_per_s", "raw.requests_per_s",
              "> 188.09, >= 0.95 of vLLM's")  # fmt: skip
    yield row("all at once, output tokens/s", "served.burst.tokens_per_s", "raw.tokens_per_s",
              "> 3857.66")  # fmt: skip
    yield row("one stream (BLS), tokens/s", "served.alone.tokens_per_s", "raw.alone.tokens_per_s",
              ">= 0.95 of vLLM's")  # fmt: skip
    yield row("one stream (BLS), first token, ms", "served.alone.ttft_ms", "raw.alone.ttft_ms",
              "<= 3 ms above", ".2f")  # fmt: skip
    yield row("200 in, 100 out, ms", "served.latency.p50_ms", "raw.latency_ms", "< 1630")
    yield row("streams at once, tokens lost", "served.streaming.num_lost", "raw_server.num_lost",
              "0", "d")  # fmt: skip
    yield row("streams at once, output tokens/s", "served.streaming.tokens_per_s",
              "raw_server.tokens_per_s")  # fmt: skip
    yield row("streams at once, gap p50, ms", "served.streaming.itl.p50_ms",
              "raw_server.itl.p50_ms")  # fmt: skip
    yield row("streams at once, gap p99, ms", "served.streaming.itl.p99_ms",
              "raw_server.itl.p99_ms", "<= 1.3 of vLLM's server")  # fmt: skip
    yield row("streams at once, tokens a response", "served.streaming.tokens_per_response",
              "raw_server.tokens_per_response", "", ".2f")  # fmt: skip
    yield row("greedy answers that are equal", "greedy.num_equal", "greedy.num_prompts", "all",
              "d")  # fmt: skip
    yield row("TP 2: greedy answers that are equal", "tp2.greedy.num_equal",
              "tp2.greedy.num_prompts", "all", "d")  # fmt: skip
    yield row("TP 2: all at once, requests/s", "tp2.burst.requests_per_s",
              "served.burst.requests_per_s")  # fmt: skip
    yield row("ready after, s", "served.ready_after_s")


def _get(found: dict[str, Any], path: str) -> Any:
    value: Any = found
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def main() -> None:
    """Run the parts, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine-python", default="", help="the Python that has vLLM")
    parser.add_argument("--work", type=Path, default=Path("gpu-check"))
    parser.add_argument("--only", action="append", choices=PARTS, default=[])
    parser.add_argument("--text-instances", type=int, default=1, help="processes per text model")
    parser.add_argument(
        "--vllm-args", type=json.loads, default={}, metavar="JSON",
        help="engine arguments for vLLM called directly and behind Triton alike",
    )  # fmt: skip
    parser.add_argument("--rehearse", action="store_true")
    given = parser.parse_args()
    work = given.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    python = rehearsal_python(work) if given.rehearse else _find_python(given.engine_python)
    check = Check(
        work, python, SHORT if given.rehearse else FULL, given.rehearse, given.text_instances,
        given.vllm_args,
        {"at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
         "gpus": [gpu.shown_as for gpu in find_gpus()], "command": sys.argv},
    )  # fmt: skip
    write_shape(check.big, check.sizes.shape)
    write_small(check.small)
    for part in given.only or PARTS:
        print(f"--- {part}", file=sys.stderr, flush=True)
        started_s = time.perf_counter()
        try:
            with limited(LIMITS[part]):
                check.found[part] = PARTS[part](check)
        except (Exception, TimeIsUp) as error:
            traceback.print_exc()
            known = check.found.get(part, {})
            check.found[part] = {**known, "error": f"{type(error).__name__}: {error}"}
        check.found[part]["took_s"] = time.perf_counter() - started_s
        save(check)
    print(report(check.found))


def _find_python(given: str) -> str:
    from trtllm_serve_cli.build.installed import find_python_with

    found = shutil.which(given) if given else find_python_with("vllm")
    if found is None:
        sys.exit("No Python with vLLM was found; name one: --engine-python PY")
    return str(Path(found).absolute())


if __name__ == "__main__":
    main()
