from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.fakes.triton.answers import exact_length
from tests.fakes.triton.server import FakeTriton
from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
from trtllm_serve_cli.bench.model.arrivals import AllAtOnce, AtConcurrency
from trtllm_serve_cli.bench.model.served_model import Target, fetch_model
from trtllm_serve_cli.bench.run.benchmark import BenchmarkResult, run_benchmark
from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist
from trtllm_serve_cli.bench.workloads.words import RandomWords
from trtllm_serve_cli.errors import BadInput, NoServer, RequestFailed

ServeHttp = Callable[[FakeTriton], str]


def _run(address: str, *, takes_text: bool = False, **settings: Any) -> BenchmarkResult:
    workload = RandomWords(5, 1, 4, 0) if takes_text else TokenNormDist(8, 2, 4, 0)
    chosen: dict[str, Any] = {
        "workload": workload,
        "load": AllAtOnce(),
        "num_requests": 6,
        "input_kind": "text" if takes_text else "tokens",
    } | settings
    model = "ensemble" if takes_text else "tensorrt_llm"
    return run_benchmark(BenchmarkSettings(**chosen), [Target(address, model, "http")])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("takes_text", [False, True], ids=["tokens", "text"])
def test_every_http_response_has_the_requested_length(
    serve_http: ServeHttp, takes_text: bool, stream: bool
) -> None:
    result = _run(serve_http(FakeTriton(answer=exact_length)), takes_text=takes_text, stream=stream)
    assert {record.num_output_tokens for record in result.records} == {4}
    assert result.summary.num_completed == 6
    assert (result.summary.times["ttft"] is not None) is stream
    assert result.token_counts == "server"


def test_connections_are_reused(serve_http: ServeHttp) -> None:
    server = FakeTriton(answer=exact_length)
    address = serve_http(server)
    _run(address, load=AtConcurrency(1), num_requests=10, num_warmup_requests=0)
    assert (len({each.peer for each in server.requests}), len(server.requests)) == (1, 10)


def test_text_without_token_counts_is_counted_by_response(serve_http: ServeHttp) -> None:
    server = FakeTriton(answer=partial(exact_length, counts_tokens=False))
    result = _run(serve_http(server), takes_text=True, stream=True)
    assert result.token_counts == "responses"


def test_tokenizer_counts_text_without_token_counts(serve_http: ServeHttp) -> None:
    class Letters:
        end_id = 0

        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return [1] * add_special_tokens + list(text.encode())

    address = serve_http(FakeTriton(answer=partial(exact_length, counts_tokens=False)))
    settings = BenchmarkSettings(
        RandomWords(5, 1, 4, 0), AllAtOnce(), 3, input_kind="text", stream=True
    )
    target = Target(address, "ensemble", "http")
    result = run_benchmark(settings, [target], tokenizer=Letters())
    assert result.token_counts == "re-tokenised"
    assert {record.num_output_tokens for record in result.records} == {len("word" * 4)}


def test_server_errors_over_http_are_counted_by_status(serve_http: ServeHttp) -> None:
    result = _run(serve_http(FakeTriton(fails_every=1)), stream=True)
    assert result.error_messages == [("http_400: out of cheese", 6)]


def test_body_requests_an_exact_length(serve_http: ServeHttp) -> None:
    server = FakeTriton(answer=exact_length)
    _run(serve_http(server), takes_text=True, num_requests=1, num_warmup_requests=0)
    (body,) = server.received
    assert (body["max_tokens"], body["end_id"], body["stream"]) == (4, -1, False)
    assert len(body["text_input"].split()) >= 3


def test_reports_an_http_address_without_a_server() -> None:
    with pytest.raises(NoServer, match=r"No server responds at 127.0.0.1:1\."):
        fetch_model(Target("127.0.0.1:1", "x", "http"), "tokens")


def test_reports_an_unknown_model_over_http(serve_http: ServeHttp) -> None:
    target = Target(serve_http(FakeTriton(answer=exact_length)), "nope", "http")
    with pytest.raises(RequestFailed, match="The server does not have a model named 'nope'"):
        fetch_model(target, "tokens")


def test_rejects_a_model_without_text_input(serve_http: ServeHttp) -> None:
    target = Target(serve_http(FakeTriton(answer=exact_length)), "tensorrt_llm", "http")
    with pytest.raises(BadInput, match="does not accept text"):
        fetch_model(target, "text")
