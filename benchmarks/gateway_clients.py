"""Compare `tllm bench` with other clients of one OpenAI-compatible server.

    python benchmarks/gateway_clients.py --url http://127.0.0.1:9000 --model NAME
        [--aiperf PROGRAM] [--guidellm PROGRAM] [--vllm PROGRAM]
        [--rounds 2] [--requests 48] [--concurrency 8]

The other clients are AIPerf, GuideLLM and `vllm bench serve`. All clients send the same prompts as
streamed chat completions, request 32 tokens per response, and keep the same number of requests in
flight. They run in turns, so that each round has one result of each client, and each round starts
with another client. Before a round, `tllm bench` sends its prompts once, so that all clients find
them in the KV cache. Use a simulated engine: its steps have a known duration. Install the other
clients in separate environments. They require a tokenizer, but read the number of tokens from the
server.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from load_aiperf import TOKENIZER
from load_clients import run_client

NUM_TOKENS = 32
_WORDS = ("river", "stone", "light", "paper", "music", "window", "garden", "simple", "number")


@dataclass(frozen=True)
class Row:
    """Tokens per second, and medians in milliseconds.

    `tpot_ms` is the mean time per token after the first token of a request, and `gap_ms` is the
    time between two chunks, which GuideLLM does not report.
    """

    client: str
    tokens_per_s: float
    ttft_ms: float
    tpot_ms: float
    gap_ms: float | None = None

    def __str__(self) -> str:
        gap = "" if self.gap_ms is None else f"{self.gap_ms:.1f}"
        times = f"{self.ttft_ms:>9.1f} {self.tpot_ms:>9.1f} {gap:>9}"
        return f"{self.client:<10} {self.tokens_per_s:>9.1f} {times}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:9000")
    parser.add_argument("--model", default="demo")
    for name in _OTHERS:
        parser.add_argument(f"--{name}", help="path of the program")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--concurrency", type=int, default=8)
    options = parser.parse_args()
    print(f"{'client':<10} {'tokens/s':>9} {'TTFT':>9} {'TPOT':>9} {'gap':>9}")
    clients = [run_tllm, *(run for name, run in _OTHERS.items() if getattr(options, name))]
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as name:
            write_inputs(Path(name), options.requests, seed=number)
            run_tllm(options, Path(name))
            first = number % len(clients)
            for run in clients[first:] + clients[:first]:
                print(run(options, Path(name)), flush=True)


def write_inputs(folder: Path, num_requests: int, *, seed: int) -> None:
    """Write the prompts in the format of each client, and the tokenizer."""
    draw = random.Random(seed)
    prompts = [" ".join(draw.choices(_WORDS, k=60)) for _ in range(num_requests)]
    entries = {
        "tllm.jsonl": [{"prompt": each, "output_tokens": NUM_TOKENS} for each in prompts],
        "aiperf.jsonl": [{"text": each} for each in prompts],
        "guidellm.jsonl": [
            {"prompt": each, "prompt_tokens_count": 60, "output_tokens_count": NUM_TOKENS}
            for each in prompts
        ],
    }
    for file, lines in entries.items():
        (folder / file).write_text("".join(json.dumps(line) + "\n" for line in lines))
    for file, content in TOKENIZER.items():
        (folder / file).write_text(json.dumps(content))


def run_tllm(options: argparse.Namespace, folder: Path) -> Row:
    command = [sys.executable, "-m", "trtllm_serve_cli.cli.main", "bench", "end-to-end"]
    command += ["-i", "openai", "-u", f"{options.url}/v1", "-m", options.model, "--stream"]
    command += ["--dataset", str(folder / "tllm.jsonl"), "--ignore-eos", "--warmup", "0"]
    command += ["--num-requests", str(options.requests)]
    command += ["--concurrency", str(options.concurrency), "--json"]
    summary = json.loads(run_client(command)[0])["summary"]
    assert summary["num_failed"] == 0, summary
    times = (summary[name]["p50_ms"] for name in ("ttft", "tpot", "itl"))
    return Row("tllm", summary["output_tokens_per_s"], *times)


def run_aiperf(options: argparse.Namespace, folder: Path) -> Row:
    command = [options.aiperf, "profile", "--model", options.model, "--url", options.url]
    command += ["--endpoint-type", "chat", "--streaming", "--custom-dataset-type", "single_turn"]
    command += ["--input-file", str(folder / "aiperf.jsonl")]
    command += ["--extra-inputs", f"max_completion_tokens:{NUM_TOKENS}"]
    command += ["--extra-inputs", "ignore_eos:true"]
    command += ["--tokenizer", str(folder), "--use-server-token-count"]
    command += ["--concurrency", str(options.concurrency)]
    command += ["--request-count", str(options.requests), "--ui", "none"]
    command += ["--no-gpu-telemetry", "--no-server-metrics", "--artifact-dir", str(folder / "out")]
    run_client(command, {**os.environ, "AIPERF_DATASET_MMAP_CACHE_ENABLED": "false"})
    result = json.loads((folder / "out" / "profile_export_aiperf.json").read_text())
    assert result["request_count"]["avg"] == options.requests, result
    names = ("time_to_first_token", "inter_token_latency", "inter_chunk_latency")
    times = (result[name]["p50"] for name in names)
    return Row("AIPerf", result["output_token_throughput"]["avg"], *times)


def run_guidellm(options: argparse.Namespace, folder: Path) -> Row:
    output = folder / "guidellm.json"
    target = f"kind=openai_http,target={options.url},model={options.model}"
    command = [options.guidellm, "run", "--disable-console"]
    command += ["--backend", f"{target},request_format=/v1/chat/completions"]
    command += ["--profile", f"kind=concurrent,streams={options.concurrency}"]
    command += ["--constraint", f"kind=max_requests,count={options.requests}"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={folder}"]
    command += ["--data", f"kind=json_file,path={folder / 'guidellm.jsonl'}"]
    command += ["--output", f"kind=json,path={output}"]
    run_client(command, {**os.environ, "HF_HUB_OFFLINE": "1"})
    (benchmark,) = json.loads(output.read_text())["benchmarks"]
    metrics = benchmark["metrics"]
    names = ("time_to_first_token_ms", "inter_token_latency_ms")
    times = (metrics[name]["successful"]["median"] for name in names)
    return Row("GuideLLM", metrics["output_tokens_per_second"]["successful"]["mean"], *times)


def run_vllm(options: argparse.Namespace, folder: Path) -> Row:
    command = [options.vllm, "bench", "serve", "--backend", "openai-chat"]
    command += ["--base-url", options.url, "--endpoint", "/v1/chat/completions"]
    command += ["--model", options.model, "--tokenizer", str(folder)]
    command += ["--dataset-name", "custom", "--dataset-path", str(folder / "tllm.jsonl")]
    command += ["--skip-chat-template", "--disable-shuffle", "--ignore-eos"]
    command += ["--custom-output-len", str(NUM_TOKENS), "--num-prompts", str(options.requests)]
    command += ["--max-concurrency", str(options.concurrency), "--save-result"]
    command += ["--result-dir", str(folder), "--result-filename", "vllm.json"]
    run_client(command, {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"})
    result = json.loads((folder / "vllm.json").read_text())
    assert result["completed"] == options.requests, result
    times = (result[f"median_{name}_ms"] for name in ("ttft", "tpot", "itl"))
    return Row("vLLM", result["output_throughput"], *times)


_OTHERS: dict[str, Callable[[argparse.Namespace, Path], Row]] = {
    "aiperf": run_aiperf,
    "guidellm": run_guidellm,
    "vllm": run_vllm,
}


if __name__ == "__main__":
    main()
