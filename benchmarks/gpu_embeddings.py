"""Compare embeddings from the gateway with those of vLLM alone.

Both run the same BERT checkpoint with random weights. The embeddings of texts that are sent one
after another should differ only by numerical errors. The rates are those of many texts: vLLM alone
receives all of them in one call, and the gateway receives requests with several texts each.
"""

from __future__ import annotations

import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from gpu_check import FIRST_TOKEN, Check
from gpu_models import BERT_BASE, text_of, write_bert
from gpu_served import PORTS, launched
from gpu_vllm import run_raw

from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.importing.declaration import (
    Declaration,
    EngineSection,
    ModelSection,
    RepositorySection,
)
from trtllm_serve_cli.importing.importer import import_model

_NUM_COMPARED = 32
_MAX_LENGTH = 400
_LENGTH = 128
_TEXTS_PER_REQUEST = 32
_IN_FLIGHT = 16

Prompts = list[list[int]]


def check_embeddings(check: Check) -> dict[str, Any]:
    """Compare single embeddings, and the rates of many texts."""
    folder = write_bert(check.work / "bert")
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, _MAX_LENGTH, _NUM_COMPARED).tolist()
    compared = [_draw(rng, length) for length in lengths]
    many = [_draw(rng, _LENGTH) for _ in range(check.sizes.num_embedded)]
    warmup = [_draw(rng, _LENGTH) for _ in range(check.sizes.num_embedded)]
    limits = {
        "max_num_seqs": check.sizes.max_batch_size,
        "max_num_batched_tokens": check.sizes.max_num_tokens,
        "max_model_len": BERT_BASE["max_position_embeddings"],
    }
    arguments = {"model": str(folder), "tokenizer": str(folder), "runner": "pooling", **limits}
    job = {"kind": "embed", "prompts": compared, "together": many, "warmup": warmup}
    raw = run_raw(check, "embeddings", arguments, {"embed": job})["embed"]
    _import(check, str(folder))
    with launched(check):
        got = [_embed([prompt])[0] for prompt in compared]
        _embed_many(warmup)
        started_s = time.perf_counter()
        _embed_many(many)
        duration_s = time.perf_counter() - started_s
    return {
        "num_compared": len(compared),
        "min_cosine": _min_cosine(np.array(raw["embeddings"]), np.array(got)),
        "texts_per_s": len(many) / duration_s,
        "raw_texts_per_s": len(many) / raw["duration_s"],
    }


def _draw(rng: np.random.Generator, length: int) -> list[int]:
    tokens: list[int] = rng.integers(FIRST_TOKEN, BERT_BASE["vocab_size"], length).tolist()
    return tokens


def _import(check: Check, folder: str) -> None:
    declaration = Declaration(
        ModelSection("gpu-check", f"local:{folder}"),
        EngineSection("vllm"),
        EngineOptions(
            max_batch_size=check.sizes.max_batch_size, max_num_tokens=check.sizes.max_num_tokens
        ),
        RepositorySection(parameters={"engine_python": check.python}),
    )
    import_model(declaration, check.home, force=True)


def _embed(prompts: Prompts, encoding: str = "float") -> list[Any]:
    """Return the embeddings that the gateway computes for the texts."""
    texts = [text_of(prompt) for prompt in prompts]
    body = {"model": "gpu-check", "input": texts, "encoding_format": encoding}
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORTS['openai_port']}/v1/embeddings",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        return [each["embedding"] for each in json.load(response)["data"]]


def _embed_many(prompts: Prompts) -> None:
    """Send the texts in several requests at a time, with responses that are small to decode."""
    starts = range(0, len(prompts), _TEXTS_PER_REQUEST)
    with ThreadPoolExecutor(_IN_FLIGHT) as pool:
        parts = pool.map(
            lambda start: _embed(prompts[start : start + _TEXTS_PER_REQUEST], "base64"), starts
        )
        assert sum(map(len, parts)) == len(prompts)


def _min_cosine(expected: np.ndarray[Any, Any], got: np.ndarray[Any, Any]) -> float:
    """Return the smallest cosine similarity of two embeddings of the same text."""
    assert expected.shape == got.shape, (expected.shape, got.shape)
    products = (expected * got).sum(axis=1)
    lengths = np.linalg.norm(expected, axis=1) * np.linalg.norm(got, axis=1)
    return float((products / lengths).min())
