"""Compare engine arguments of vLLM on a GPU, with and without grouped-query attention.

    python benchmarks/gpu_trials.py --engine-python PY [--shape NAME]... [--trial NAME]...

Loads vLLM alone once per trial, with random weights, and measures a burst of requests
(`tllm bench token-norm-dist`: 128 tokens in, 20 out on average), a burst of long requests (1,700
in, 100 out) and one stream (200 in, 300 out).
Prints each result as it arrives, with its ratio to the first trial of the same shape, which is
`default` unless `--trial` is set. The default arguments are those that `tllm import` chooses for
the GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_check import FULL, Check, draw_burst, draw_prompts, draw_warmup, prompt_of
from gpu_models import LLAMA_2_7B, MISTRAL_7B, write_shape
from gpu_vllm import run_raw

SHAPES = {"multi-head": LLAMA_2_7B, "grouped-query": MISTRAL_7B}
FP8, FP8_KV = {"quantization": "fp8"}, {"kv_cache_dtype": "fp8"}
TRIALS: Mapping[str, dict[str, Any]] = {
    "default": {},
    "FP8": FP8,
    "FP8 KV cache": FP8_KV,
    "FP8, FP8 KV cache": {**FP8, **FP8_KV},
    "2048 sequences": {"max_num_seqs": 2048},
    "CUDA graphs up to 1024": {"max_cudagraph_capture_size": 1024},
    "blocks of 32": {"block_size": 32},
    "blocks of 64": {"block_size": 64},
    "FlashInfer": {"attention_backend": "FLASHINFER"},
    "Triton attention": {"attention_backend": "TRITON_ATTN"},
    "FP8, FP8 KV, 2048 sequences": {**FP8, **FP8_KV, "max_num_seqs": 2048},
}
NUM_TOKENS = 300
# The requests of the long burst, and their tokens.
NUM_LONG, LONG_PROMPT, LONG_OUTPUT = 300, 1700, 100


def measure(check: Check, arguments: Mapping[str, Any], num_requests: int) -> dict[str, float]:
    """Return the rates of both bursts and of one stream, and the trial's duration in seconds."""
    prompts, lengths = draw_burst(check)
    long_prompts = draw_prompts(check, NUM_LONG, LONG_PROMPT)
    jobs = {
        "burst": {"kind": "burst", "prompts": prompts[:num_requests],
                  "lengths": lengths[:num_requests], "warmup": draw_warmup(check)},
        "long": {"kind": "burst", "prompts": long_prompts, "lengths": [LONG_OUTPUT] * NUM_LONG,
                 "warmup": draw_warmup(check)},
        "alone": {"kind": "alone", "prompt": prompt_of(check, 200), "num_tokens": NUM_TOKENS,
                  "repeats": 3},
    }  # fmt: skip
    started_s = time.perf_counter()
    found = run_raw(check, "trial", {**check.arguments(check.big), **arguments}, jobs)
    alone = found["alone"]
    decode_s = statistics.median(alone["duration_s"]) - statistics.median(alone["ttft_s"])
    return {
        "requests_per_s": num_requests / found["burst"]["duration_s"],
        "long_requests_per_s": NUM_LONG / found["long"]["duration_s"],
        "tokens_per_s": (NUM_TOKENS - 1) / decode_s,
        "took_s": time.perf_counter() - started_s,
    }


def main() -> None:
    """Run the trials, and write the results to DIR/trials.json after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine-python", required=True, help="Python with vLLM")
    parser.add_argument("--work", type=Path, default=Path("gpu-trials"))
    parser.add_argument("--shape", action="append", choices=SHAPES, default=[])
    parser.add_argument("--trial", action="append", choices=TRIALS, default=[])
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=3600, help="start no trial after this")
    arguments = parser.parse_args()
    work = arguments.work.absolute()
    found: list[dict[str, Any]] = []
    started_s = time.perf_counter()
    print(
        f"{'shape':<14} {'trial':<28} {'requests/s':>16} {'long requests/s':>16} "
        f"{'one stream, tokens/s':>22}"
    )
    for shape in arguments.shape or SHAPES:
        sizes = dataclasses.replace(FULL, shape=SHAPES[shape])
        check = Check(work, arguments.engine_python, sizes, False, None, {}, {})
        write_shape(check.big, sizes.shape)
        base: dict[str, float] = {}
        for trial in arguments.trial or TRIALS:
            if time.perf_counter() - started_s > arguments.seconds:
                sys.exit("The time is up; the remaining trials did not run.")
            try:
                result = measure(check, TRIALS[trial], arguments.requests)
            except RuntimeError as error:
                print(f"{shape:<14} {trial:<28} failed: {str(error)[-600:]}", flush=True)
                continue
            base = base or result
            found.append({"shape": shape, "trial": trial, **result})
            (work / "trials.json").write_text(json.dumps(found, indent=1))
            cells = [
                f"{result[key]:.1f} ({result[key] / base[key]:.3f})"
                for key in ("requests_per_s", "long_requests_per_s", "tokens_per_s")
            ]
            row = f"{shape:<14} {trial:<28} {cells[0]:>16} {cells[1]:>16} {cells[2]:>22}"
            print(row, flush=True)


if __name__ == "__main__":
    main()
