"""Benchmarks of the fake server with the OpenAI API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.openai_server import FakeOpenAI, exact_length
from tests.samples.certificates import certify
from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
from trtllm_serve_cli.bench.model.arrivals import AllAtOnce, AtConcurrency
from trtllm_serve_cli.bench.model.served_model import OpenAITarget
from trtllm_serve_cli.bench.report.result_json import upstream_rows
from trtllm_serve_cli.bench.report.tables import remarks
from trtllm_serve_cli.bench.run.benchmark import BenchmarkResult, run_benchmark
from trtllm_serve_cli.bench.workloads.identity import Identity
from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist
from trtllm_serve_cli.bench.workloads.prefixes import MultiTurn
from trtllm_serve_cli.bench.workloads.words import RandomWords
from trtllm_serve_cli.client.transport.openai.endpoint import (
    Api,
    OpenAIEndpoint,
    parse_base_url,
)

LENGTHS = TokenNormDist(8, 2, 4, 0)
WORDS = RandomWords(5, 1, 4, 0)


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(answer=exact_length) as fake:
        yield fake


def _run(
    server: FakeOpenAI, api: Api = "completions", tokenizer: Any = None, **settings: Any
) -> BenchmarkResult:
    is_text = settings.get("workload", WORDS) is WORDS
    chosen: dict[str, Any] = {
        "workload": WORDS,
        "load": AllAtOnce(),
        "num_requests": 6,
        "num_warmup_requests": 0,
        "input_kind": "text" if is_text else "tokens",
        "timeout_s": 60,
    } | settings
    target = OpenAITarget(OpenAIEndpoint(parse_base_url(server.url)), "org/demo", api)
    return run_benchmark(BenchmarkSettings(**chosen), [target], tokenizer=tokenizer)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("api", "workload"),
    [("chat", WORDS), ("completions", WORDS), ("completions", LENGTHS)],
    ids=["chat", "text", "tokens"],
)
def test_tokens_are_those_that_the_server_counts(
    server: FakeOpenAI, api: Api, workload: Any, stream: bool
) -> None:
    result = _run(server, api, workload=workload, stream=stream)
    assert {record.num_output_tokens for record in result.records} == {4}
    assert {record.num_input_tokens for record in result.records} == {4}
    assert {len(record.chunk_s) for record in result.records} == {4 if stream else 1}
    assert (result.summary.num_completed, result.token_counts) == (6, "server")
    assert (result.summary.times["ttft"] is not None) is stream


def test_counts_are_spread_over_the_chunks(server: FakeOpenAI) -> None:
    server.tokens_per_piece = 3
    (record,) = _run(server, stream=True, num_requests=1).records
    assert record.chunk_tokens == (3, 3, 3, 3)


def test_tokens_without_text_arrive_at_the_end(server: FakeOpenAI) -> None:
    server.answer = lambda body: iter([""] * 4)
    (record,) = _run(server, stream=True, num_requests=1).records
    assert (record.chunk_tokens, record.chunk_s) == ((4,), (record.end_s,))


def test_chunks_are_stamped_when_they_arrive(server: FakeOpenAI) -> None:
    server.gap_s = 0.02
    (record,) = _run(server, stream=True, num_requests=1).records
    assert record.chunk_s == tuple(sorted(set(record.chunk_s)))
    assert record.sent_s + 0.08 <= record.chunk_s[-1] <= record.end_s


def test_text_without_usage_is_counted_by_chunk(server: FakeOpenAI) -> None:
    server.counts_tokens = False
    result = _run(server, stream=True)
    assert (result.token_counts, result.summary.num_output_tokens) == ("responses", 24)


def test_input_tokens_without_usage_are_unknown(server: FakeOpenAI) -> None:
    unknown = "The server does not report input token counts, so they are unknown."
    for counts_tokens in (True, False):
        server.counts_tokens = counts_tokens
        result = _run(server, stream=True)
        summary = result.summary
        assert (summary.rates["input_tokens_per_s"] is not None) == counts_tokens
        assert ("Avg. IP tokens per request" in upstream_rows(summary)) == counts_tokens
        assert (unknown in remarks(result)) != counts_tokens


def test_tokenizer_counts_text_without_usage(server: FakeOpenAI) -> None:
    class Letters:
        end_id = 0

        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return [1] * add_special_tokens + list(text.encode())

    server.counts_tokens = False
    result = _run(server, "chat", Letters(), stream=True)
    assert result.token_counts == "re-tokenised"
    assert {record.num_output_tokens for record in result.records} == {len("word " * 4)}


def test_connections_are_reused(server: FakeOpenAI) -> None:
    _run(server, load=AtConcurrency(1), num_requests=8, stream=True)
    _, *peers = server.peers  # the first request is the probe
    assert (len(peers), len(set(peers))) == (8, 1)


def test_stream_does_not_depend_on_packets(server: FakeOpenAI) -> None:
    server.slice_bytes, server.line_end, server.has_comments = 5, "\r\n", True
    result = _run(server, "chat", stream=True)
    assert {record.chunk_tokens for record in result.records} == {(1, 1, 1, 1)}


def test_requests_have_ids_and_the_key(server: FakeOpenAI) -> None:
    server.api_key = "secret"
    endpoint = OpenAIEndpoint(parse_base_url(server.url), "secret")
    settings = BenchmarkSettings(WORDS, AllAtOnce(), 1, input_kind="text", num_warmup_requests=0)
    run_benchmark(settings, [OpenAITarget(endpoint, "org/demo", "chat")])
    assert server.headers[-1]["X-Request-Id"] == "tllm-bench-0"
    assert server.headers[-1]["Authorization"] == "Bearer secret"


def test_batches_have_the_tokens_of_all_rows(server: FakeOpenAI) -> None:
    result = _run(server, workload=Identity(2, 3, 4), num_requests=1)
    assert result.records[0].num_output_tokens == 8


def test_conversations_contain_the_ids_of_responses(server: FakeOpenAI) -> None:
    server.has_token_ids = True
    result = _run(server, workload=MultiTurn(LENGTHS, 3), num_requests=2, stream=True)
    assert result.summary.num_completed == 6
    prompts = [body["prompt"] for body in server.bodies[1:]]
    longest = max(prompts, key=len)
    first = next(each for each in prompts if each == longest[: len(each)])
    assert longest[len(first) : len(first) + 4] == [7] * 4


def test_failures_are_counted_by_status(server: FakeOpenAI) -> None:
    server.fails_after = 1
    result = _run(server, stream=True)
    assert result.error_messages == [("http_429: slow down", 6)]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("error", "server: out of cheese"),
        ("cut", "connection: the server closed the connection"),
        ("end", "server: the response ended without [DONE]"),
    ],
)
def test_streams_that_break_are_failures(server: FakeOpenAI, kind: str, message: str) -> None:
    server.breaks_after, server.break_kind = 2, kind
    result = _run(server, stream=True)
    assert result.error_messages == [(message, 6)]
    assert result.token_counts == "server"  # failed requests do not change how tokens are counted


def test_https_servers_can_be_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = certify(tmp_path, "localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(files[0]))
    with FakeOpenAI(answer=exact_length, certificate=files) as server:
        result = _run(server, "chat", stream=True)
    assert result.summary.num_completed == 6
