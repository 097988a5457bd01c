"""Compare LoRA adapters of the server with those of vLLM alone.

The small model has two adapters: `known` is in the server's folder of adapters at the start, and
the gateway loads `late` at run time. Greedy tokens with each adapter must equal vLLM's, also if
requests for the base model and for both adapters arrive together.
"""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from gpu_check import Check, greedy_prompts
from gpu_greedy import Tokens, compare_tokens, count_different, generate_tokens
from gpu_models import SMALL
from gpu_served import PORTS, import_checkpoint, launched
from gpu_vllm import run_raw

from trtllm_serve_cli.runtime.lora.safetensors import write_safetensors

_RANK = 8
# The change of a weight matrix is then as large as its random weights.
_STD = 0.15
_GATEWAY = f"http://127.0.0.1:{PORTS['openai_port']}/v1"
_BASE, _KNOWN, _LATE = "gpu-check", "known", "late"
_ADAPTERS = (_KNOWN, _LATE)


def check_lora(check: Check) -> dict[str, Any]:
    """Compare the adapters' tokens through Triton and through the gateway with vLLM's."""
    folder = check.work / "adapters"
    for seed, name in enumerate(_ADAPTERS):
        write_adapter(folder / name, seed)
    # The server's own folder contains only one of the adapters.
    at_start = check.work / "adapters-at-start"
    write_adapter(at_start / _KNOWN, 0)
    prompts = greedy_prompts(check)
    expected = _generate_raw(check, prompts, folder)
    parameters = {"lora_prefetch_dir": str(at_start), "max_loras": "2"}
    import_checkpoint(check, check.small, max_lora_rank=_RANK, more_parameters=parameters)
    num_tokens = check.sizes.greedy_tokens
    with launched(check, runtime_lora_dir=folder) as server:
        by_triton = [generate_tokens(server, each, num_tokens, _KNOWN) for each in prompts]
        _load_adapter(_LATE)
        jobs = [(model, prompt) for prompt in prompts for model in expected]
        one_by_one = [_complete(*job, num_tokens) for job in jobs]
        with ThreadPoolExecutor(len(jobs)) as pool:
            together = list(pool.map(lambda job: _complete(*job, num_tokens), jobs))
    found: dict[str, Any] = {
        "num_changed": {
            name: count_different(expected[_BASE], expected[name]) for name in _ADAPTERS
        },
        "triton": compare_tokens(expected[_KNOWN], by_triton),
    }
    for way, answers in (("gateway", one_by_one), ("together", together)):
        got = _by_model(jobs, answers)
        found[way] = {model: compare_tokens(expected[model], got[model]) for model in expected}
    return found


def write_adapter(folder: Path, seed: int) -> None:
    """Write a random adapter of the small model's attention in PEFT's format."""
    rng = np.random.default_rng(seed)
    hidden = SMALL["hidden_size"]
    keys = hidden * SMALL["num_key_value_heads"] // SMALL["num_attention_heads"]
    tensors = {}
    for layer in range(SMALL["num_hidden_layers"]):
        for module, num_out in (("q_proj", hidden), ("v_proj", keys), ("o_proj", hidden)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = rng.normal(0, _STD, (_RANK, hidden))
            tensors[f"{name}.lora_B.weight"] = rng.normal(0, _STD, (num_out, _RANK))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(write_safetensors(tensors))
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": _RANK, "lora_alpha": _RANK,
        "bias": "none", "target_modules": ["q_proj", "v_proj", "o_proj"],
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))


def _generate_raw(check: Check, prompts: Tokens, folder: Path) -> dict[str, Tokens]:
    """Return vLLM's tokens of the base model and of each adapter."""
    job = {"kind": "greedy", "prompts": prompts, "num_tokens": check.sizes.greedy_tokens}
    jobs = {
        _BASE: job,
        **{name: {**job, "adapter": str(folder / name)} for name in _ADAPTERS},
    }
    arguments = {"enable_lora": True, "max_loras": 2, "max_lora_rank": _RANK}
    found = run_raw(check, "lora", {**check.arguments(check.small), **arguments}, jobs)
    return {name: found[name]["tokens"] for name in jobs}


def _load_adapter(name: str) -> None:
    body = {"lora_name": name, "lora_path": name}
    _post("load_lora_adapter", body)


def _complete(model: str, prompt: list[int], num_tokens: int) -> list[int]:
    """Return the tokens of a completion. Each word of the text is a token."""
    body = {
        "model": model, "prompt": prompt, "max_tokens": num_tokens, "temperature": 0,
        "ignore_eos": True,
    }  # fmt: skip
    text = json.loads(_post("completions", body))["choices"][0]["text"]
    return [int(word.removeprefix("w")) for word in text.split()]


def _post(path: str, body: dict[str, Any]) -> bytes:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{_GATEWAY}/{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        content: bytes = response.read()
        return content


def _by_model(jobs: list[tuple[str, list[int]]], answers: Tokens) -> dict[str, Tokens]:
    grouped: dict[str, Tokens] = {}
    for (model, _), answer in zip(jobs, answers, strict=True):
        grouped.setdefault(model, []).append(answer)
    return grouped
