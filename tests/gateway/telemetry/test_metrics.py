from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.gateway.fakes import FakeBackend, fail, generates, make_client
from trtllm_serve_cli.gateway.access.call import Call
from trtllm_serve_cli.gateway.access.keys import ApiKey, add_key
from trtllm_serve_cli.gateway.access.limits import Limits
from trtllm_serve_cli.gateway.telemetry.metrics import Metrics

BODY = {"model": "demo", "prompt": "abc", "max_tokens": 5}


def read_samples(text: str) -> dict[tuple[str, ...], float]:
    """Return the value of each sample by its name and its label values."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith(("_created", "_bucket"))
    }


def test_times_of_a_request() -> None:
    metrics = Metrics(Limits(1, 1))
    key = ApiKey("alice", "0" * 64, 0.0)
    call = Call("id", "POST", "/v1/chat/completions", key=key, model="demo", status=200)
    call.num_input_tokens, call.num_output_tokens, call.is_complete = 7, 5, True
    call.started_s, call.first_token_s, call.last_token_s, call.ended_s = 10.0, 10.5, 12.5, 13.0
    metrics.observe(call)
    samples = read_samples(metrics.render().decode())
    labels = ("chat", "tllm", "demo", "alice")
    start = "gen_ai_server_"
    assert samples[(f"{start}request_duration_seconds_sum", "", *labels)] == 3.0
    assert samples[(f"{start}time_to_first_token_seconds_sum", *labels)] == 0.5
    assert samples[(f"{start}time_per_output_token_seconds_sum", *labels)] == 0.5
    assert samples["tllm_gateway_tokens_total", "demo", "input", "alice"] == 7
    assert samples["tllm_gateway_tokens_total", "demo", "output", "alice"] == 5
    assert samples["tllm_gateway_http_responses_total", "200"] == 1


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/messages/count_tokens"])
def test_requests_for_the_tokenizer_are_not_operations(path: str) -> None:
    metrics = Metrics(Limits(1, 1))
    call = Call("id", "POST", path, model="demo", status=200, is_complete=True, ended_s=1.0)
    metrics.observe(call)
    samples = read_samples(metrics.render().decode())
    assert not [name for name, *_ in samples if name.startswith("gen_ai_")]
    assert samples["tllm_gateway_http_responses_total", "200"] == 1


@pytest.mark.parametrize("stream", [False, True])
def test_requests_are_counted_by_model_operation_and_key(tmp_path: Path, stream: bool) -> None:
    file = tmp_path / "keys.json"
    headers = {"authorization": f"Bearer {add_key(file, 'alice', now_s=1.0)}"}
    with make_client(FakeBackend(generates("Hello!")), {"keys_file": str(file)}) as client:
        client.headers = headers
        for _ in range(3):
            client.post("/v1/completions", json={**BODY, "stream": stream})
        client.post("/v1/completions", json={**BODY, "model": "unknown"})
        samples = read_samples(client.get("/metrics").text)
    labels = ("text_completion", "tllm", "demo", "alice")
    assert samples[("gen_ai_server_request_duration_seconds_count", "", *labels)] == 3
    assert samples[("gen_ai_server_time_to_first_token_seconds_count", *labels)] == 3
    assert samples["tllm_gateway_tokens_total", "demo", "input", "alice"] == 9
    assert samples["tllm_gateway_tokens_total", "demo", "output", "alice"] == 15
    assert samples["tllm_gateway_http_responses_total", "404"] == 1
    assert not any("unknown" in labels for labels in samples)


@pytest.mark.parametrize(("stream", "status"), [(False, "500"), (True, "500")])
def test_errors_have_a_type_and_no_token_times(stream: bool, status: str) -> None:
    with make_client(FakeBackend(fail("the engine failed"))) as client:
        client.post("/v1/completions", json={**BODY, "stream": stream})
        samples = read_samples(client.get("/metrics").text)
    labels = ("text_completion", "tllm", "demo", "")
    assert samples[("gen_ai_server_request_duration_seconds_count", status, *labels)] == 1
    assert ("gen_ai_server_time_to_first_token_seconds_count", *labels) not in samples


def test_rejected_requests_are_counted_by_reason(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key = add_key(file, "alice", now_s=1.0, requests_per_minute=1)
    with make_client(FakeBackend(), {"keys_file": str(file)}) as client:
        headers = {"authorization": f"Bearer {key}"}
        client.post("/v1/completions", json=BODY)
        for _ in range(3):
            client.post("/v1/completions", json=BODY, headers=headers)
        samples = read_samples(client.get("/metrics", headers=headers).text)
    assert samples["tllm_gateway_rejected_requests_total", "", "key"] == 1
    assert samples["tllm_gateway_rejected_requests_total", "alice", "requests"] == 2
    labels = ("text_completion", "tllm", "demo", "alice")
    assert samples[("gen_ai_server_request_duration_seconds_count", "", *labels)] == 1
