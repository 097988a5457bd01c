"""Run vLLM alone, as the reference of the GPU check. Runs in the Python with vLLM.

    python gpu_raw.py JOBS.json RESULT.json

JOBS has `arguments` (vLLM's engine arguments) and `jobs`, each with a `kind`:

    greedy   prompts, num_tokens, adapter  -> tokens of each prompt, one prompt after another
    together prompts, num_tokens           -> tokens of each prompt, all prompts together
    burst    prompts, lengths, warmup      -> duration_s of all prompts together
    alone    prompt, num_tokens, repeats   -> duration_s and ttft_s of each repeat, one in flight
    embed    prompts, together, warmup     -> embeddings of each prompt, one after another, and
                                              duration_s of `together`

Prompts are token ids. `adapter` is the folder of a LoRA adapter in PEFT's format, and is optional.
Requires vLLM, but not this project.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from pathlib import Path
from typing import Any


def main() -> None:
    """Run the jobs, and write the results after each."""
    work = json.loads(Path(sys.argv[1]).read_text())
    results: dict[str, Any] = {}
    engine = _load(work["arguments"])
    for name, job in work["jobs"].items():
        results[name] = _KINDS[job["kind"]](engine, job)
        Path(sys.argv[2]).write_text(json.dumps(results))
    engine.llm_engine.engine_core.shutdown()
    # With a pooling model, vLLM 0.26 aborts while the interpreter ends.
    os._exit(0)


def _load(arguments: dict[str, Any]) -> Any:
    from vllm import LLM

    return LLM(**arguments)


def _generate(
    engine: Any, prompts: list[list[int]], lengths: list[int], adapter: str | None = None
) -> list[list[int]]:
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    params = [
        SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False)
        for length in lengths
    ]
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    # vLLM identifies an adapter by its id, which must be positive.
    lora = LoRARequest(adapter, _adapter_id(adapter), adapter) if adapter else None
    answers = engine.generate(inputs, params, use_tqdm=False, lora_request=lora)
    return [list(answer.outputs[0].token_ids) for answer in answers]


def _adapter_id(folder: str) -> int:
    return zlib.crc32(folder.encode()) % 2**31 + 1


def run_greedy(engine: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Generate one prompt after another, so that every step has the same shape everywhere."""
    length, adapter = job["num_tokens"], job.get("adapter")
    return {
        "tokens": [_generate(engine, [prompt], [length], adapter)[0] for prompt in job["prompts"]]
    }


def run_together(engine: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Generate all prompts in one batch."""
    prompts = job["prompts"]
    return {"tokens": _generate(engine, prompts, [job["num_tokens"]] * len(prompts))}


def run_burst(engine: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Generate all prompts together, after a warm-up with prompts that are not measured."""
    _generate(engine, job["warmup"], [8] * len(job["warmup"]))
    started_s = time.perf_counter()
    answers = _generate(engine, job["prompts"], job["lengths"])
    return {
        "duration_s": time.perf_counter() - started_s,
        "num_tokens": sum(map(len, answers)),
    }


def run_alone(engine: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Measure the time of one token and of the whole response, in turns."""
    times: dict[str, list[float]] = {"ttft_s": [], "duration_s": []}
    for turn in range(job["repeats"] + 1):
        for name, length in (("ttft_s", 1), ("duration_s", job["num_tokens"])):
            # Each prompt is different, so that it is not cached.
            prompt = [turn + 3, length + 3, *job["prompt"][2:]]
            started_s = time.perf_counter()
            _generate(engine, [prompt], [length])
            if turn:
                times[name].append(time.perf_counter() - started_s)
    return times


def run_embed(engine: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Compute embeddings one after another, then all together after a warm-up."""

    def embed(prompts: list[list[int]]) -> list[list[float]]:
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [each.outputs.embedding for each in engine.embed(inputs, use_tqdm=False)]

    embeddings = [embed([prompt])[0] for prompt in job["prompts"]]
    embed(job["warmup"])
    started_s = time.perf_counter()
    embed(job["together"])
    return {"embeddings": embeddings, "duration_s": time.perf_counter() - started_s}


_KINDS = {
    "greedy": run_greedy, "together": run_together, "burst": run_burst, "alone": run_alone,
    "embed": run_embed,
}  # fmt: skip


if __name__ == "__main__":
    main()
