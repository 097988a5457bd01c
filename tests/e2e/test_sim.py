"""The simulated engine in a real Triton, compared with `bench --simulate`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Tllm
from tests.e2e.core import gauge, infer, tokens
from tests.waiting import wait_until
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.metrics.fetch import fetch_metrics
from trtllm_serve_cli.metrics.parse import parse_metrics

STEP_S = 0.2
# Relative tolerance for a busy machine; the compared values are medians of long steps.
SAME = 0.1
LOADS = {
    "closed": ("--concurrency", "8", "--num-requests", "24"),
    "open": ("--request-rate", "3", "--num-requests", "30"),
}


@pytest.fixture(scope="module")
def sim(source: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tllm]:
    """Serve a simulated model, `sim`, in a new home."""
    folder = tmp_path_factory.mktemp("sim")
    timing = folder / "timing.json"
    timing.write_text(
        json.dumps({"timing": {"step_s": STEP_S, "prompt_token_s": 1e-4, "sequence_s": 1e-3}})
    )
    tllm = Tllm(folder / "home")
    tllm.done("import", "-m", "sim", "-s", source, "--engine", "sim", "--timing", str(timing))
    started = tllm.start("-m", "sim")
    assert started.returncode == 0, started.stdout + started.stderr
    yield tllm
    tllm("stop", "--all")


@pytest.fixture(scope="module")
def endpoint(sim: Tllm) -> Endpoint:
    return sim.endpoint()


def bench(tllm: Tllm, *words: str) -> dict[str, Any]:
    output = tllm.done(
        "bench", "token-norm-dist", "--json", "--stream", "--output-mean", "12", *words
    )
    return dict(json.loads(output)["summary"])


def test_response_consists_of_words_of_the_prompt(sim: Tllm) -> None:
    texts = [
        sim.done("infer", "-m", "sim", "--raw", "one two three", "--max-tokens", "4", "--seed", "5")
        for _ in range(2)
    ]
    assert texts[0] == texts[1]
    assert set(texts[0].split()) & {"one", "two", "three"}


def test_response_has_the_requested_number_of_tokens(endpoint: Endpoint) -> None:
    outputs = infer(endpoint, [30, 31, 32], 6, streaming=True)
    assert len(tokens(outputs)) == 6
    assert set(tokens(outputs)) <= {30, 31, 32}


def test_unsupported_tensor_is_refused(endpoint: Endpoint) -> None:
    with pytest.raises(Exception, match=r"beam_width \(beam search\) is not supported .* sim"):
        infer(endpoint, [30, 31], 2, beam_width=2)


def test_metrics_include_the_kv_cache_of_an_idle_engine(endpoint: Endpoint) -> None:
    def blocks(kind: str) -> float | None:
        snapshot = parse_metrics(fetch_metrics(endpoint.metrics), 0.0)
        return snapshot.value("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type=kind)

    infer(endpoint, [30, 31, 32], 2)
    assert blocks("max") == (1 << 20) / 32
    wait_until(lambda: (blocks("used"), gauge(endpoint, "active")) == (0, 0))


@pytest.fixture(scope="module")
def simulation(sim: Tllm, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write the server's timing file, with Triton's time per request as single requests show it."""
    alone = ("--concurrency", "1", "--num-requests", "5")
    served, virtual = (
        bench(sim, *where, *alone)["ttft"]["p50_ms"] for where in ((), ("--simulate", "sim"))
    )
    content = json.loads((sim.engine("sim") / "simulation.json").read_text())
    content["timing"]["request_s"] = max(served - virtual, 0) / 1000
    path = tmp_path_factory.mktemp("timing") / "timing.json"
    path.write_text(json.dumps(content))
    return str(path)


def figures(summary: dict[str, Any]) -> dict[str, float]:
    """Return the values that a server and the virtual clock share; latencies are medians in ms."""
    latencies = {name: summary[name]["p50_ms"] for name in ("itl", "request_latency", "ttft")}
    return {name: summary[name] for name in ("num_completed", "output_tokens_per_s")} | latencies


@pytest.mark.parametrize("load", LOADS)
def test_a_server_and_the_virtual_clock_agree(sim: Tllm, simulation: str, load: str) -> None:
    virtual = figures(bench(sim, "--simulate", simulation, *LOADS[load]))
    expected = {name: pytest.approx(figure, rel=SAME) for name, figure in virtual.items()}
    # A request that just misses a step waits for the next one.
    expected["ttft"] = pytest.approx(virtual["ttft"], abs=virtual["itl"] / 2)
    expected["num_completed"] = virtual["num_completed"]
    # Other load on the machine may delay one run, but rarely three.
    for _ in range(3):
        served = figures(bench(sim, *LOADS[load]))
        if served == expected:
            break
    assert served == expected


def test_simulated_engine_is_served_in_the_llmapi_layout(source: str, tmp_path: Path) -> None:
    other = Tllm(tmp_path / "home")
    try:
        other.done("import", "-m", "text", "-s", source, "--engine", "sim", "--gpu", "h200",
                   "--layout", "llmapi", "--max-seq-len", "512")  # fmt: skip
        started = other.start("-m", "text")
        assert started.returncode == 0, started.stdout + started.stderr
        assert other.done("infer", "-m", "text", "--raw", "one two three", "--max-tokens", "4")
    finally:
        other("stop", "--all")
