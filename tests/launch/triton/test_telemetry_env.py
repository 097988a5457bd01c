from __future__ import annotations

import pytest

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.launch.triton.telemetry_env import (
    read_trace_rate,
    telemetry_environ,
    trace_settings,
)


def test_telemetry_is_off_by_default() -> None:
    assert (telemetry_environ(LaunchOptions()), trace_settings(LaunchOptions())) == ({}, ())


def test_models_and_triton_send_spans_to_the_same_place() -> None:
    options = LaunchOptions(otlp_endpoint="http://collector:4318")
    url = "http://collector:4318/v1/traces"
    assert telemetry_environ(options) == {"TLLM_OTLP_TRACES": url}
    assert trace_settings(options) == (
        "mode=opentelemetry", f"opentelemetry,url={url}", "level=TIMESTAMPS", "rate=1",
    )  # fmt: skip


def test_trace_config_of_the_user_wins() -> None:
    options = LaunchOptions(otlp_endpoint="http://c/otlp", trace_config=("rate=100", "count=5"))
    assert trace_settings(options)[-3:] == ("level=TIMESTAMPS", "rate=100", "count=5")


def test_log_options_become_variables() -> None:
    options = LaunchOptions(log_format="json", log_requests="prompts")
    assert telemetry_environ(options) == {
        "TLLM_LOG_FORMAT": "json", "TLLM_LOG_REQUESTS": "prompts",
    }  # fmt: skip


@pytest.mark.parametrize(
    "endpoint",
    ["localhost:4317", "grpc://c:4317", "", "http://", "http://[c", "http://c:x", "http://a..b"],
)
def test_invalid_endpoint_is_rejected(endpoint: str) -> None:
    with pytest.raises(BadInput, match="is not a valid collector URL"):
        telemetry_environ(LaunchOptions(otlp_endpoint=endpoint))


@pytest.mark.parametrize(
    ("trace_config", "rate"),
    [((), 1), (("rate=100", "count=5"), 100), (("rate=1", "rate=7"), 7), (("rate=often",), 1)],
)
def test_gateway_traces_at_the_rate_of_triton(trace_config: tuple[str, ...], rate: int) -> None:
    assert read_trace_rate(trace_config) == rate
