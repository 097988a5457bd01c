"""Check the whole stack on a machine with a GPU, and compare it with vLLM alone.

    python benchmarks/gpu.py [--engine-python PY] [--work DIR] [--only PART]... [--rehearse]

Creates checkpoints with the shapes of Llama-2-7B and Mistral-7B, whose weights vLLM draws at
random, and a small one with weights. Imports and serves them with the engine kind vllm, and
measures them. docs/guides/vllm.md describes each part. Each part has a time limit, and a failure
does not affect the others. After each part, the script writes the results to DIR/gpu.json. At the
end, it prints a table. `--rehearse` runs everything without a GPU, on the tests' stand-in for vLLM:
use it to test the script; the measurements are meaningless.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gpu_check import (
    ENGINE_GPUS,
    FULL,
    SHORT,
    Check,
    draw_burst,
    draw_warmup,
    greedy_prompts,
    prompt_of,
)
from gpu_clocks import watching_gpus
from gpu_embeddings import check_embeddings
from gpu_gateway import check_engines, check_gateway
from gpu_greedy import check_greedy, compare_tokens, generate_all, generate_raw
from gpu_lora import check_lora
from gpu_models import write_shape, write_small
from gpu_ready import check_ready
from gpu_report import report
from gpu_served import (
    measure_alone,
    measure_burst,
    measure_latency,
    measure_memory,
    measure_streaming,
    served,
    summarize_alone,
)
from gpu_text import check_text
from gpu_vllm import run_raw

from trtllm_serve_cli.build.installed import find_python_with
from trtllm_serve_cli.sizing.gpus import find_gpus

# Seconds after which a part is stopped.
LIMITS = {"raw": 420, "greedy": 300, "lora": 300, "served": 480, "ready": 300, "gateway": 560,
          "engines": 700, "text": 560, "embeddings": 300, "tp2": 480}  # fmt: skip


def check_raw(check: Check) -> dict[str, Any]:
    """Measure vLLM alone: a burst of all requests, and a single stream."""
    prompts, lengths = draw_burst(check)
    jobs = {
        "burst": {"kind": "burst", "prompts": prompts, "lengths": lengths,
                  "warmup": draw_warmup(check)},
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


def check_served(check: Check) -> dict[str, Any]:
    """Run all measurements of the large model behind Triton."""
    found: dict[str, Any] = {}
    with served(check, check.big) as server:
        for name, measure in {
            "burst": measure_burst,
            "alone": measure_alone,
            "latency": measure_latency,
            "streaming": measure_streaming,
            "memory": measure_memory,
        }.items():
            # Results are kept if a later measurement fails.
            try:
                found[name] = measure(check, server)
            except Exception as error:
                traceback.print_exc()
                found[name] = {"error": f"{type(error).__name__}: {error}"}
            check.found["served"] = found
            check.save()
    return found


def check_tp2(check: Check) -> dict[str, Any]:
    """Measure two GPUs: the small model's tokens and the large model's request rate."""
    if len(find_gpus()) < 2 and not check.is_rehearsal:
        return {"left_out": "the machine has fewer than two GPUs"}
    prompts = greedy_prompts(check)
    known = check.found.get("greedy", {}).get("expected")
    expected = known or generate_raw(check, prompts)["greedy"]
    with served(check, check.small, tp=2) as server:
        got = generate_all(server, prompts, check.sizes.greedy_tokens)
    found: dict[str, Any] = {"greedy": compare_tokens(expected, got)}
    with served(check, check.big, tp=2) as server:
        found["burst"] = measure_burst(check, server)
    return found


PARTS: dict[str, Callable[[Check], dict[str, Any]]] = {
    "raw": check_raw,
    "greedy": check_greedy,
    "lora": check_lora,
    "served": check_served,
    "ready": check_ready,
    "gateway": check_gateway,
    "engines": check_engines,
    "text": check_text,
    "embeddings": check_embeddings,
    "tp2": check_tp2,
}


class TimeIsUp(SystemExit):
    """Raised if a part exceeds its time limit.

    This is not an `Exception`, because the running code would handle an `Exception` as its own
    failure, and continue without a limit. An event loop propagates only exceptions such as
    `SystemExit` from callbacks.
    """


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise `TimeIsUp` if the `with` block takes longer than `seconds`."""

    def stop(*_: object) -> None:
        raise TimeIsUp(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def rehearsal_python(work: Path) -> str:
    """Return a Python that imports the tests' stand-in for vLLM."""
    script = work / "python3"
    stand_in = Path(__file__).parents[1] / "tests" / "fakes" / "stand_in"
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{stand_in}" exec {sys.executable} "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


def main() -> None:
    """Run the parts and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine-python", default="", help="Python with vLLM")
    parser.add_argument("--work", type=Path, default=Path("gpu-check"))
    parser.add_argument("--only", action="append", choices=PARTS, default=[])
    parser.add_argument(
        "--text-instances", type=int,
        help="processes per text model; by default, tllm import chooses the number",
    )  # fmt: skip
    parser.add_argument(
        "--vllm-args", type=json.loads, default={}, metavar="JSON",
        help="engine arguments for vLLM, alone and behind Triton",
    )  # fmt: skip
    parser.add_argument(
        "--engine-gpus", default=ENGINE_GPUS,
        help="gpu_device_ids of the part engines, with one GPU per engine. Default: %(default)s",
    )  # fmt: skip
    parser.add_argument(
        "--grouped-shape", type=json.loads, default={}, metavar="JSON",
        help="changes of the config.json of the model with the shape of Mistral 7B",
    )  # fmt: skip
    parser.add_argument("--rehearse", action="store_true")
    arguments = parser.parse_args()
    work = arguments.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    python = rehearsal_python(work) if arguments.rehearse else _find_python(arguments.engine_python)
    sizes = SHORT if arguments.rehearse else FULL
    sizes = replace(sizes, grouped_shape=sizes.grouped_shape | arguments.grouped_shape)
    check = Check(
        work, python, sizes, arguments.rehearse,
        arguments.text_instances, arguments.vllm_args,
        {"at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
         "gpus": [gpu.shown_as for gpu in find_gpus()], "command": sys.argv},
        engine_gpus=arguments.engine_gpus,
    )  # fmt: skip
    write_shape(check.big, check.sizes.shape)
    write_shape(check.grouped, check.sizes.grouped_shape)
    write_small(check.small)
    for part in arguments.only or PARTS:
        print(f"--- {part}", file=sys.stderr, flush=True)
        started_s = time.perf_counter()
        with watching_gpus() as summarize_gpus:
            try:
                with limited(LIMITS[part]):
                    check.found[part] = PARTS[part](check)
            except (Exception, TimeIsUp) as error:
                traceback.print_exc()
                known = check.found.get(part, {})
                check.found[part] = {**known, "error": f"{type(error).__name__}: {error}"}
        check.found[part]["took_s"] = time.perf_counter() - started_s
        check.found[part]["gpu"] = summarize_gpus()
        check.save()
    print(report(check.found))


def _find_python(name: str) -> str:
    found = shutil.which(name) if name else find_python_with("vllm")
    if found is None:
        sys.exit("No Python with vLLM was found. Specify one with --engine-python PY.")
    return str(Path(found).absolute())


if __name__ == "__main__":
    main()
