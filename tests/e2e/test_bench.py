"""Benchmarks of the demo model: every workload, both interfaces, and the output files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Tllm
from trtllm_serve_cli.client.endpoint import Endpoint

SHORT = ("--input-mean", "10", "--input-stdev", "2", "--output-mean", "5", "--output-stdev", "1")


def _bench(tllm: Tllm, *words: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(tllm.done("bench", *words, "--json"))
    assert result["errors"] == []
    return result


def _dataset(folder: Path) -> str:
    file = folder / "data.json"
    entries = [
        {"input": "The sky is blue today.", "instruction": "Repeat it.", "output": "It is blue ."},
        {"input": "Cats and dogs play.", "instruction": "Who plays?", "output": "Cats do ."},
    ]
    file.write_text(json.dumps(entries))
    return str(file)


@pytest.mark.parametrize("interface", ["grpc", "http"])
@pytest.mark.parametrize(
    "words",
    [
        ("token-norm-dist", *SHORT),
        ("shared-prefix", "--prefix-tokens", "32", *SHORT),
        ("multi-turn", "--turns", "2", *SHORT),
        ("end-to-end", "--ignore-eos", "--output-tokens", "5"),
        ("end-to-end", "--ignore-eos", "--output-tokens", "5", "--through", "own"),
    ],
    ids=lambda words: " ".join(words[:1] + words[-1:]),
)
def test_a_workload_streams_over_both_interfaces(
    served: Tllm, words: tuple[str, ...], interface: str
) -> None:
    result = _bench(served, *words, "-i", interface, "--num-requests", "3", "--stream")
    summary = result["summary"]
    assert result["token_counts"] == "server"
    assert summary["ttft"]["p50_ms"] <= summary["request_latency"]["p50_ms"]
    if words[0] == "end-to-end":
        assert summary["num_output_tokens"] == 15


def test_text_models_give_the_same_answers(served: Tllm) -> None:
    words = ("end-to-end", "--num-requests", "1", "--output-tokens", "8", "--through", "own")
    result = served("bench", *words)
    assert result.returncode == 0, result.stderr
    assert (
        "demo returned the same response twice, and ensemble and tensorrt_llm_bls returned the "
        "same response." in " ".join(result.stderr.split())
    )


def test_data_set_is_tokenized_by_the_model(served: Tllm, tmp_path: Path) -> None:
    words = ("dataset", "--dataset", _dataset(tmp_path), "--ignore-eos")
    result = _bench(served, *words, "--op-tokens-per-word", "1.3")
    assert result["summary"]["num_requests"] == 2
    assert result["summary"]["num_output_tokens"] == int(4 * 1.3) + int(3 * 1.3)
    assert 10 < result["summary"]["num_input_tokens"] < 40


def test_identity_counts_the_tokens_of_every_row(served: Tllm) -> None:
    result = _bench(served, "identity", "-b", "3", "-o", "4", "--num-requests", "2")
    assert result["summary"]["num_output_tokens"] == 2 * 3 * 4


def test_server_samples_and_queue_times_are_recorded(served: Tllm, tmp_path: Path) -> None:
    folder = tmp_path / "result"
    words = ("token-norm-dist", *SHORT, "--num-requests", "20", "--concurrency", "4")
    output_options = ("--server-times", "--sample-interval", "0.2", "--output", str(folder))
    result = _bench(served, *words, *output_options)
    assert result["summary"]["queue_time"]["num_samples"] == 20
    lines = (folder / "server_samples.jsonl").read_text().splitlines()
    samples = [json.loads(line) for line in lines]
    (engine,) = samples[-1]["engines"]
    assert engine["kv_blocks_max"] > 0
    assert max(sample["engines"][0]["num_active"] for sample in samples) <= 4


def test_two_workers_load_one_server(served: Tllm, endpoint: Endpoint) -> None:
    words = ("token-norm-dist", *SHORT, "--num-requests", "8", "--workers", "2")
    result = _bench(served, *words, "-u", endpoint.grpc, "--concurrency", "4")
    assert (result["summary"]["num_completed"], result["client"]["num_workers"]) == (8, 2)
    assert result["summary"]["max_in_flight"] <= 4
